//! Arrays in files.

mod common;

use common::Random;
use half::bf16;
use halflap_run::tensor::{
    DType, Mini, Misfit, NpyError, Npz, Tensor, Tiny, View, read_npy, write_npy, write_npz,
};

#[test]
fn there_and_back() {
    let arrays = vec![
        ("a".to_owned(), Tensor::of(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, f32::NAN])),
        ("scalar".to_owned(), Tensor::of(&[], &[7i64])),
        ("narrow".to_owned(), Tensor::of(&[3], &[1.0, -2.0, 0.5].map(bf16::from_f32))),
        ("truth".to_owned(), Tensor::typed(DType::Pred, &[2], &[1u8, 0])),
        ("float8".to_owned(), Tensor::typed(DType::Mini(Mini::F8e4m3fn), &[2], &[1u8, 0x80])),
        ("int4".to_owned(), Tensor::typed(DType::Tiny(Tiny::S4), &[2], &[-8i8, 7])),
        ("empty".to_owned(), Tensor::zeros(DType::F64, &[0, 4])),
        ("long".to_owned(), Random(1).floats(&[300, 70])),
    ];
    for (name, array) in &arrays {
        assert_eq!(&read_npy(&write_npy(array)).unwrap(), array, "{name}");
    }
    let bytes = write_npz(&arrays);
    let archive = Npz::read(&bytes).unwrap();
    assert!(archive.names().eq(arrays.iter().map(|(name, _)| name.as_str())));
    for (name, array) in &arrays {
        assert_eq!(&archive.get(name).unwrap(), array, "{name}");
    }
    assert_eq!(archive.get("other").unwrap_err(), NpyError::Missing("other".to_owned()));
}

#[test]
fn columns_first() {
    let header = "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend([1i32, 4, 2, 5, 3, 6].iter().flat_map(|value| value.to_le_bytes()));
    assert_eq!(read_npy(&bytes).unwrap().slice::<i32>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn damaged_files_are_refused() {
    let bytes = write_npz(&[("a".to_owned(), Random(2).floats(&[40]))]);
    let mut random = Random(5);
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.between(1, 4) {
            let at = random.below(damaged.len());
            damaged[at] = random.next() as u8;
        }
        damaged.truncate(random.between(0, damaged.len()));
        // No matter what is found, nothing may panic.
        let _ = Npz::read(&damaged).and_then(|archive| archive.get("a"));
        let _ = read_npy(&damaged);
    }
    assert_eq!(read_npy(b"text").unwrap_err(), NpyError::Magic);
}

/// Whatever byte of an array is changed, packed or not, it is not taken for the one that was
/// written.
#[test]
fn changed_arrays_are_refused() {
    let array = Random(2).floats(&[40]);
    let bytes = write_npz(&[("a".to_owned(), array.clone())]);
    let read = |bytes: &[u8]| Npz::read(bytes).and_then(|archive| archive.get("a"));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        if let Ok(found) = read(&damaged) {
            assert_eq!(found.bytes(), array.bytes(), "byte {at}");
        }
    }
    let mut damaged = bytes.clone();
    let middle = bytes.windows(5).position(|name| name == b"a.npy").unwrap() + 60;
    damaged[middle] ^= 0x10;
    assert_eq!(read(&damaged).unwrap_err(), NpyError::Member("a.npy".to_owned()));
}

#[test]
fn views_fit() {
    let memory = Tensor::zeros(DType::U8, &[16]);
    assert!(View::new(DType::F32, &[2, 2], memory.bytes()).is_ok());
    let size = View::new(DType::F32, &[5], memory.bytes()).unwrap_err();
    assert!(matches!(size, Misfit::Size { expected: 20, given: 16, .. }));
    assert_eq!(
        View::new(DType::F32, &[3], &memory.bytes()[1..13]).unwrap_err(),
        Misfit::Alignment { dtype: DType::F32 }
    );
}
