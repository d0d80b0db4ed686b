//! Compiles `src/closed_stdout.c`, which notes what is too late to find out in Rust.

fn main() {
    println!("cargo:rerun-if-changed=src/closed_stdout.c");
    if std::env::var_os("CARGO_CFG_UNIX").is_some() {
        // Nothing refers to it, so the linker has to be told to keep it.
        cc::Build::new()
            .file("src/closed_stdout.c")
            .link_lib_modifier("+whole-archive")
            .compile("comity_closed_stdout");
    }
}
