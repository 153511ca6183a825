//! Plain or gzipped, recognised by the first two bytes.

use std::borrow::Cow;
use std::io::Read;

use flate2::bufread::GzDecoder;

use super::ImportError;

/// The limit of unpacking: a thousand times the largest graph that we know.
const MOST: u64 = 4 << 30;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The bytes themselves, or what they hold if they are gzipped. A byte-order mark is skipped.
pub fn unzip(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ImportError> {
    if !bytes.starts_with(&MAGIC) {
        return Ok(Cow::Borrowed(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)));
    }
    let mut text = Vec::new();
    let mut rest = bytes;
    while rest.starts_with(&MAGIC) {
        let mut member = GzDecoder::new(rest);
        let read = member.by_ref().take(MOST + 1 - text.len() as u64).read_to_end(&mut text);
        read.map_err(|error| damaged(&error, text.len()))?;
        if text.len() as u64 > MOST {
            return Err(ImportError::TooLarge { most: MOST });
        }
        rest = member.into_inner();
    }
    // Tape drives and some tools pad with zeros.
    match rest.iter().all(|&byte| byte == 0) {
        true => Ok(Cow::Owned(text)),
        false => Err(ImportError::Gzip(format!(
            "the gzip file goes on for {} bytes after its end",
            rest.len()
        ))),
    }
}

/// What the beginning of a file holds, unpacked as far as possible.
pub(super) fn beginning(bytes: &[u8]) -> Vec<u8> {
    const ENOUGH: u64 = 1 << 18;
    let mut text = Vec::new();
    if bytes.starts_with(&MAGIC) {
        // The rest is expected to be missing.
        let _ = GzDecoder::new(bytes).take(ENOUGH).read_to_end(&mut text);
    } else {
        text.extend_from_slice(&bytes[..bytes.len().min(ENOUGH as usize)]);
    }
    text.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(text)
}

fn damaged(error: &std::io::Error, at: usize) -> ImportError {
    ImportError::Gzip(match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            format!("the gzip file is cut off (after {at} unpacked bytes)")
        }
        _ => format!("the gzip file is damaged ({error}, after {at} unpacked bytes)"),
    })
}
