//! Zip archives, as far as `.npz` files need them: stored and deflated members, including more than
//! 4 GB.

use std::io::{Read, Write};

use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::npy::NpyError;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArchiveMember {
    pub(super) name: String,
    is_deflated: bool,
    packed: u64,
    size: u64,
    header: u64,
    crc: u32,
}

const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// The value of a 32-bit field when the number is in a 64-bit extra field.
const ELSEWHERE: u64 = 0xffff_ffff;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64, NpyError> {
    let field = bytes.get(at..at.saturating_add(N)).ok_or(NpyError::Archive("it is cut short"))?;
    Ok(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// The archive's members, in order.
pub(super) fn members(bytes: &[u8]) -> Result<Vec<ArchiveMember>, NpyError> {
    let first = bytes.len().saturating_sub(22 + 65_535);
    let at =
        (first..bytes.len().saturating_sub(21)).rev().find(|&at| bytes[at..].starts_with(&END));
    let at = at.ok_or(NpyError::Archive("it has no directory"))?;
    let (mut count, mut place) = (number::<2>(bytes, at + 10)?, number::<4>(bytes, at + 16)?);
    if let Some(locator) =
        at.checked_sub(20).filter(|&locator| bytes[locator..].starts_with(&LOCATOR_64))
    {
        let end = number::<8>(bytes, locator + 8)? as usize;
        if !bytes.get(end..).is_some_and(|rest| rest.starts_with(&END_64)) {
            return Err(NpyError::Archive("its directory is not where it says"));
        }
        (count, place) = (number::<8>(bytes, end + 32)?, number::<8>(bytes, end + 48)?);
    }
    let mut at = place as usize;
    // A member takes at least 46 bytes of the directory: a wrong count allocates little.
    let mut members = Vec::with_capacity((count as usize).min(bytes.len() / 46));
    for _ in 0..count {
        let (member, next) = member(bytes, at)?;
        members.push(member);
        at = next;
    }
    Ok(members)
}

/// The member whose entry in the directory is at a place, and where the next one is.
fn member(bytes: &[u8], at: usize) -> Result<(ArchiveMember, usize), NpyError> {
    if !bytes.get(at..).is_some_and(|rest| rest.starts_with(&ENTRY)) {
        return Err(NpyError::Archive("its directory is damaged"));
    }
    let (method, crc) = (number::<2>(bytes, at + 10)?, number::<4>(bytes, at + 16)? as u32);
    let (mut packed, mut size) = (number::<4>(bytes, at + 20)?, number::<4>(bytes, at + 24)?);
    let (name_len, extra_len) =
        (number::<2>(bytes, at + 28)? as usize, number::<2>(bytes, at + 30)? as usize);
    let comment_len = number::<2>(bytes, at + 32)? as usize;
    let mut header = number::<4>(bytes, at + 42)?;
    let cut = NpyError::Archive("it is cut short");
    let name = bytes.get(at + 46..at + 46 + name_len).ok_or(cut)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let mut extra = at + 46 + name_len;
    let end = extra + extra_len;
    while extra + 4 <= end {
        let (kind, len) = (number::<2>(bytes, extra)?, number::<2>(bytes, extra + 2)? as usize);
        let mut field = extra + 4;
        if kind == 1 {
            for value in [&mut size, &mut packed, &mut header] {
                if *value == ELSEWHERE {
                    *value = number::<8>(bytes, field)?;
                    field += 8;
                }
            }
        }
        extra += 4 + len;
    }
    let is_deflated = match method {
        0 => false,
        8 => true,
        _ => {
            return Err(NpyError::Archive(
                "a member is packed in a way that is neither 'stored' nor 'deflated'",
            ));
        }
    };
    Ok((ArchiveMember { name, is_deflated, packed, size, header, crc }, end + comment_len))
}

/// What is in a member.
pub(super) fn unpack(bytes: &[u8], member: &ArchiveMember) -> Result<Vec<u8>, NpyError> {
    let at = member.header as usize;
    if !bytes.get(at..).is_some_and(|rest| rest.starts_with(&LOCAL)) {
        return Err(NpyError::Archive("a member is not where the directory says"));
    }
    let start =
        at + 30 + number::<2>(bytes, at + 26)? as usize + number::<2>(bytes, at + 28)? as usize;
    let packed = start.checked_add(member.packed as usize).and_then(|end| bytes.get(start..end));
    let packed = packed.ok_or(NpyError::Archive("it is cut short"))?;
    let mut unpacked = Vec::new();
    // One byte too many is enough to detect a wrong length.
    let most = member.size.saturating_add(1);
    let read = match member.is_deflated {
        true => DeflateDecoder::new(packed).take(most).read_to_end(&mut unpacked),
        false => packed.take(most).read_to_end(&mut unpacked),
    };
    let mut crc = Crc::new();
    crc.update(&unpacked);
    match read {
        Ok(len) if len as u64 == member.size && crc.sum() == member.crc => Ok(unpacked),
        _ => Err(NpyError::Member(member.name.clone())),
    }
}

/// An archive of deflated members.
pub(super) fn pack(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    // Readers recognise an empty archive only by its plain end record.
    if members.is_empty() {
        return [&END[..], &[0; 18]].concat();
    }
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in members {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        // Writing to memory does not fail.
        let packed = encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default();
        let mut crc = Crc::new();
        crc.update(content);
        let place = archive.len() as u64;
        let sizes = [content.len() as u64, packed.len() as u64];
        archive.extend(LOCAL);
        head(&mut archive, crc.sum(), name);
        extra(&mut archive, &sizes);
        let name_at = archive.len() - 20;
        archive.splice(name_at..name_at, name.bytes());
        archive.extend(&packed);
        directory.extend(ENTRY);
        directory.extend(45u16.to_le_bytes());
        head(&mut directory, crc.sum(), name);
        let len = directory.len() - 2;
        directory[len..].copy_from_slice(&28u16.to_le_bytes());
        // No comment, first disk, no attributes, the place in the extra field.
        directory.extend([0; 2 + 2 + 2 + 4]);
        directory.extend([0xff; 4]);
        directory.extend(name.bytes());
        extra(&mut directory, &[sizes[0], sizes[1], place]);
    }
    if members.is_empty() {
        // numpy does not accept an empty archive with more than this.
        return [&END[..], &[0; 18]].concat();
    }
    end(&mut archive, &directory, members.len() as u64);
    archive
}

/// What local header and directory have in common: version to name length, and the length of an
/// extra field with two numbers.
fn head(out: &mut Vec<u8>, crc: u32, name: &str) {
    out.extend(45u16.to_le_bytes());
    out.extend([0, 0, 8, 0]);
    // The first of January 1980, midnight: archives of the same content are the same.
    out.extend([0, 0, 0x21, 0]);
    out.extend(crc.to_le_bytes());
    out.extend([0xff; 8]);
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(20u16.to_le_bytes());
}

fn extra(out: &mut Vec<u8>, numbers: &[u64]) {
    out.extend(1u16.to_le_bytes());
    out.extend((numbers.len() as u16 * 8).to_le_bytes());
    out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn end(archive: &mut Vec<u8>, directory: &[u8], count: u64) {
    let (place, len) = (archive.len() as u64, directory.len() as u64);
    archive.extend(directory);
    let end = archive.len() as u64;
    archive.extend(END_64);
    archive.extend(44u64.to_le_bytes());
    archive.extend([45, 0, 45, 0]);
    archive.extend([0; 8]);
    archive.extend([count, count, len, place].iter().flat_map(|number| number.to_le_bytes()));
    archive.extend(LOCATOR_64);
    archive.extend([0; 4]);
    archive.extend(end.to_le_bytes());
    archive.extend(1u32.to_le_bytes());
    archive.extend(END);
    archive.extend([0; 4]);
    archive.extend([0xff; 2 + 2 + 4 + 4]);
    archive.extend([0; 2]);
}
