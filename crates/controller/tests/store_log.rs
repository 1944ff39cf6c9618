//! What the start says of the store.

use crate::harness::Cluster;
use crate::process::Program;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_names_a_store_that_is_new_and_so_one_that_was_lost() {
    let cluster = Cluster::with_nodes(&[]).await;
    cluster.testbed.ensure_namespace("warden").await.unwrap();
    let kubeconfig = cluster.testbed.kubeconfig();
    let local = ["--insecure-local"];
    let program = Program::start(&kubeconfig, "", &local);
    program.up().await;
    let first = program.said_code("store_new").await;
    let folder = program.kill();

    let program = Program::start_in(folder, &kubeconfig, "", &local);
    program.up().await;
    let again = program.said_code("store_opened").await;
    assert_eq!(again["id"], first["id"]);
    let (store, folder) = (program.store(), program.kill());

    std::fs::remove_dir_all(&store).unwrap();
    let program = Program::start_in(folder, &kubeconfig, "", &local);
    program.up().await;
    let lost = program.said_code("store_new").await;
    assert_ne!(lost["id"], first["id"], "another store");
    assert_eq!(lost["level"], "WARN");
    assert_eq!(lost["path"], store.display().to_string());
    let said = lost["message"].as_str().unwrap();
    assert!(
        said.contains("if there was one before, it is lost"),
        "{said}"
    );
}
