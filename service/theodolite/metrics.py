"""Every Prometheus metric, in base units; labels are of bounded size and never what a user chose."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from theodolite import __version__

REGISTRY = CollectorRegistry()

HTTP_REQUESTS = Counter(
    "theodolite_http_requests", "Requests answered, by route and status.", ["route", "status"], registry=REGISTRY
)
HTTP_SECONDS = Histogram(
    "theodolite_http_request_seconds",
    "Seconds from a request to the end of its answer, by route.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=REGISTRY,
)
BUILD = Gauge("theodolite_build_info", "The version that runs.", ["version"], registry=REGISTRY)
BUILD.labels(__version__).set(1)
