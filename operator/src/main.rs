//! The Holdfast operator. So far it only says who it is.

fn main() {
    println!("holdfast-operator {} (speaks {})", env!("CARGO_PKG_VERSION"), holdfast_proto::PACKAGE);
}
