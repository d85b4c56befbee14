"""An address of a RayCluster's dashboard, minted on demand: the endpoint gives one only to the identity that created the
RayCluster, which is the controller role."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
from lightkube import ApiError
from lightkube.generic_resource import create_namespaced_resource

from nightshift.adapters.kubernetes import EksCluster, kubernetes_client
from nightshift.core.errors import PermanentError, TransientError, bounded

Connection = create_namespaced_resource(
    "connection.access.sagemaker.amazonaws.com", "v1alpha1", "RayDashboardConnection", "raydashboardconnections"
)


class RayDashboards:
    """Implements ``steps.ports.Dashboards``. Neither the address nor the answer that holds it is ever part of an error."""

    def __init__(self, eks: EksCluster, token: str, namespace: str) -> None:
        self._client, self._namespace = kubernetes_client(eks, token, namespace), namespace

    def address(self, raycluster: str) -> str:
        wanted = Connection.from_dict(
            {
                "metadata": {"generateName": f"{raycluster}-", "namespace": self._namespace},
                "spec": {"clusterName": raycluster},
            }
        )
        try:
            made: Any = self._client.create(wanted)
        except ApiError as error:
            raise _refused(raycluster, error) from error
        except httpx.HTTPError as error:
            raise TransientError(raycluster, f"the Kubernetes API does not answer: {type(error).__name__}") from error
        status = made.status if isinstance(made.status, dict) else {}
        url = str(status.get("connectionUrl") or "")
        if urlsplit(url).scheme != "https":
            raise PermanentError(raycluster, "the endpoint gave no https address", "Is the public endpoint enabled?")
        return url


def _refused(raycluster: str, error: ApiError) -> TransientError | PermanentError:
    code, why = error.status.code or 0, bounded(error.status.message or "no reason given", 300)
    if code == 404:
        return PermanentError(
            raycluster, "its RayCluster, or the endpoint's operator, is not there", "Ask again later."
        )
    if code in (400, 401, 403, 422):
        return PermanentError(raycluster, f"the endpoint refused the controller role: {why}", "See docs/deploying.md.")
    return TransientError(raycluster, f"the Kubernetes API answered {code}: {why}")
