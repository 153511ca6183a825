//! One pass many times, for profilers.
use halflap::{import::read_graph, order::Order, overlap::Fidelity, pass::*};
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let n: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let pass: Pass = std::env::args().nth(3).unwrap().parse().unwrap();
    let graph = read_graph(&std::fs::read(&path).unwrap()).unwrap();
    let order = Order::of_input(&graph);
    let options = Options { settings: Settings::default(), fidelity: Fidelity::Torch };
    for _ in 0..n {
        std::hint::black_box(run(&graph, &order, (pass, &options), &mut NoWatch).unwrap());
    }
}
