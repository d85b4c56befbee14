"""The pretended HyperPod: a Kubernetes API, a RayCluster controller whose pods are real Ray processes, the
authenticated endpoint in front of the Ray dashboard, and control over nodes. Run it as ``python -m local.kube``."""
