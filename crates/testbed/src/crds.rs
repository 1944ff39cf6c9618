//! Custom resources, from the files that are shipped.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Request;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::{Testbed, wait_for};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// From its creation to its being served: a second as a rule.
const ESTABLISHED: Duration = Duration::from_secs(30);

impl Testbed {
    /// Installs a CustomResourceDefinition (YAML) and waits until its resource is served; one that is
    /// there already stays as it is.
    ///
    /// # Errors
    /// The API server refuses it, or does not serve it in 30 s.
    pub async fn install_crd(&self, yaml: &str) -> anyhow::Result<()> {
        let name = yaml
            .lines()
            .find_map(|line| line.strip_prefix("  name: "))
            .context("a CustomResourceDefinition has metadata.name, indented by two")?;
        let client = self.admin();
        let request = Request::post(PATH).header(CONTENT_TYPE, "application/yaml");
        let made = client
            .request::<Value>(request.body(yaml.as_bytes().to_vec())?)
            .await;
        match made {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error).with_context(|| format!("creating the CRD {name}")),
        }
        wait_for(
            format!("the CRD {name} to be served"),
            ESTABLISHED,
            || async {
                let request = Request::get(format!("{PATH}/{name}")).body(Vec::new())?;
                let crd: Value = client.request(request).await?;
                let conditions = crd["status"]["conditions"].as_array();
                let of = |kind| conditions.into_iter().flatten().find(|c| c["type"] == kind);
                let wrong = of("NonStructuralSchema");
                ensure!(wrong.is_none(), "{wrong:?}");
                let served = of("Established").is_some_and(|c| c["status"] == "True");
                Ok(served.then_some(()))
            },
        )
        .await
    }
}
