//! Compiles the .proto files with protox: no `protoc` needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "health_event.proto",
            "warden/v1/agent.proto",
            "janitor/csp_provider.proto",
        ],
        ["proto"],
    )?;
    // Maps in key order make the encoding of an event deterministic, which its hash needs.
    tonic_prost_build::configure()
        .btree_map(".")
        .codec_path("crate::codec::MessageCodec")
        .compile_fds(files)?;
    Ok(())
}
