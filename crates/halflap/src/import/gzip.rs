//! Plain or gzipped: told apart by the first two bytes.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::MultiGzDecoder;

use super::ImportError;

/// What a file may unpack to: a thousand times the largest graph we know.
const MOST: u64 = 4 << 30;

/// The bytes themselves, or what they hold if they are gzipped.
pub fn unzip(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ImportError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut text = Vec::new();
    let mut limited = MultiGzDecoder::new(bytes).take(MOST + 1);
    limited.read_to_end(&mut text).map_err(|error| {
        let at = text.len();
        ImportError::Gzip(match error.kind() {
            std::io::ErrorKind::UnexpectedEof => format!("the gzip file is cut off (after {at} unpacked bytes)"),
            _ => format!("the gzip file is damaged ({error}, after {at} unpacked bytes)"),
        })
    })?;
    if text.len() as u64 > MOST {
        return Err(ImportError::TooLarge { most: MOST });
    }
    Ok(Cow::Owned(text))
}
