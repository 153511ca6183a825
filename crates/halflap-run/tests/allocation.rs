//! Kernels allocate nothing once their scratch memory is as large as they need, except for the
//! matrix library, which packs its operands in its own memory.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Random, with_computations};
use halflap_hlo::Module;
use halflap_run::kernel::{Kernel, Scratch};
use halflap_run::tensor::Tensor;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is the system's; only a number of this thread is changed besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often the second run of the root's kernel allocates.
fn allocations(body: &str) -> usize {
    let module = Module::read(with_computations(body)).unwrap_or_else(|error| panic!("{error}"));
    let kernel = Kernel::compile(&module, module.root(module.entry()))
        .unwrap_or_else(|error| panic!("{error}"));
    let mut random = Random(1);
    let inputs: Vec<Tensor> =
        kernel.inputs().iter().map(|kind| random.array(kind.dtype, &kind.dims)).collect();
    let mut outputs: Vec<Tensor> =
        kernel.outputs().iter().map(|kind| Tensor::zeros(kind.dtype, &kind.dims)).collect();
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let mut writable: Vec<_> = outputs.iter_mut().map(Tensor::view_mut).collect();
    let mut scratch = Scratch::default();
    kernel.run(&views, &mut writable, &mut scratch);
    let before = COUNT.with(Cell::get);
    kernel.run(&views, &mut writable, &mut scratch);
    COUNT.with(Cell::get) - before
}

#[test]
fn nothing_is_allocated_in_the_steady_state() {
    let cases = [
        " x = f32[40,50] parameter(0)\n t = f32[50,40] transpose(x), dimensions={1,0}\n ROOT r = f32[50,40] exponential(t)",
        " x = f32[40,50] parameter(0)\n z = f32[] parameter(1)\n ROOT r = f32[40] reduce(x, z), dimensions={1}, to_apply=add",
        " x = f32[90,70] parameter(0)\n y = f32[70,80] parameter(1)\n ROOT d = f32[90,80] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        " x = f32[9,7] parameter(0)\n i = s32[5,1] parameter(1)\n ROOT g = f32[5,7] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,7}",
        " x = f32[9,7] parameter(0)\n i = s32[5,1] parameter(1)\n u = f32[5,7] parameter(2)\n ROOT s = f32[9,7] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
        " x = f32[9,70] parameter(0)\n ROOT s = f32[9,70] sort(x), dimensions={1}, to_apply=less",
        " x = f32[2,9,4] parameter(0)\n k = f32[3,4,5] parameter(1)\n ROOT c = f32[2,7,5] convolution(x, k), window={size=3}, dim_labels=b0f_0io->b0f",
        " x = f32[9,9] parameter(0)\n z = f32[] parameter(1)\n ROOT w = f32[8,8] reduce-window(x, z), window={size=2x2}, to_apply=add",
        " x = f32[9,9] parameter(0)\n y = f32[3,9] parameter(1)\n i = s32[] parameter(2)\n ROOT u = f32[9,9] dynamic-update-slice(x, y, i, i)",
    ];
    for body in cases {
        let multiplies = body.contains(" dot(") || body.contains("convolution(");
        let count = allocations(body);
        // One buffer for each operand that the library packs.
        assert!(count <= 2 * usize::from(multiplies), "{count} allocations:\n{body}");
    }
}
