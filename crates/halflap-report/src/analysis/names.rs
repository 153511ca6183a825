//! Names of kernels: templates and mangled names are long, and the distinguishing part is often at
//! the end.

use crate::text::printable_up_to;

/// A name made presentable, without its middle if it is too long.
pub(crate) fn without_middle(name: &str, most: usize) -> String {
    let name = printable_up_to(name, usize::MAX - 1);
    let length = name.chars().count();
    if length <= most {
        return name;
    }
    let kept = most.saturating_sub(3);
    let end = kept / 2;
    let tail: String = name.chars().skip(length - end).collect();
    format!("{}...{tail}", name.chars().take(kept - end).collect::<String>())
}

/// A kernel's name without its template's arguments and its parameters, and as few namespaces as
/// fit.
pub(super) fn short(name: &str) -> String {
    const MOST: usize = 32;
    let name = name.replace("(anonymous namespace)::", "");
    let bare = name.strip_prefix("void ").unwrap_or(&name);
    let bare = unmangled(bare).unwrap_or_else(|| {
        bare.split(['<', '(']).next().filter(|bare| !bare.is_empty()).unwrap_or(bare).to_owned()
    });
    let mut rest = bare.as_str();
    while let Some((_, inner)) = rest.split_once("::").filter(|_| rest.chars().count() > MOST) {
        rest = inner;
    }
    without_middle(rest, MOST)
}

/// The names in front of a mangled name's parameters (Itanium C++ ABI), as far as they can be read:
/// `_ZN2at6native4copyILi4EEEvi` is `at::native::copy`.
fn unmangled(name: &str) -> Option<String> {
    let name = name.strip_prefix("_Z")?;
    let (mut rest, nested) = name.strip_prefix('N').map_or((name, false), |inner| (inner, true));
    let mut names: Vec<&str> = Vec::new();
    while let Some((part, after)) = counted(rest).filter(|_| nested || names.is_empty()) {
        rest = after;
        names.extend(Some(part).filter(|part| !part.starts_with("_GLOBAL__")));
    }
    Some(names.join("::")).filter(|names| !names.is_empty())
}

/// A name with its length before it, and what follows.
fn counted(text: &str) -> Option<(&str, &str)> {
    let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let length: usize = text[..digits].parse().ok()?;
    text[digits..].split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_can_be_read() {
        let mangled = "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionI...#c11cfb10a3b14ee4";
        let cases = [
            (mangled, "cutlass_cudnn_train::Kernel"),
            ("_ZN2at6native12_GLOBAL__N_14copyILi4EEEvi", "at::native::copy"),
            ("_Z4axpyPfi", "axpy"),
            ("_Z", "_Z"),
            ("_ZN99short", "_ZN99short"),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::Fill<int>>(int)",
                "vectorized_elementwise_kernel",
            ),
            ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn", "ampere_fp16_s16...28_ldg8_f2f_tn"),
        ];
        for (name, expected) in cases {
            assert_eq!(short(name), expected, "{name}");
        }
    }

    #[test]
    fn what_stands_at_the_end_is_kept() {
        assert_eq!(without_middle("0123456789", 10), "0123456789");
        assert_eq!(without_middle("0123456789a", 10), "0123...89a");
        assert_eq!(without_middle("\u{e9}\n", 10), "\u{e9}\\n");
        assert_eq!(without_middle("0123456789", 2), "...");
    }
}
