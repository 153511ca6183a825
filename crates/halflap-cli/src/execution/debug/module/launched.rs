//! What a run prints about its launches (`--debug-values=3`).

/// `[ before_launch: KERNEL ]  (rank 1)`: before or after, the name, the rank.
pub(super) fn launched(line: &str) -> Option<(bool, &str, Option<usize>)> {
    let (inside, around) = line.strip_prefix("[ ")?.split_once(" ]")?;
    let (when, kernel) = inside.split_once(": ")?;
    let rank = around.split_once("rank ").map(|(_, rest)| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().unwrap_or(0)
    });
    match when {
        "before_launch" => Some((true, kernel, rank)),
        "after_launch" => Some((false, kernel, rank)),
        _ => None,
    }
}

/// Kernels that were launched and did not return.
pub(super) fn open_launches(printed: &str) -> Vec<(String, Option<usize>)> {
    let mut open: Vec<(String, Option<usize>)> = Vec::new();
    for (is_before, kernel, rank) in printed.lines().filter_map(launched) {
        match is_before {
            true => open.push((kernel.to_owned(), rank)),
            false => open.retain(|launch| *launch != (kernel.to_owned(), rank)),
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_did_not_come_back() {
        let printed = "[ before_launch: a ]  (rank 1)\n[ before_launch: a ]  (rank 2)\n[ after_launch: a ]  (rank 1)\nx\n";
        assert_eq!(open_launches(printed), [("a".to_owned(), Some(2))]);
        assert_eq!(open_launches("[ before_launch: k ]\n"), [("k".to_owned(), None)]);
    }
}
