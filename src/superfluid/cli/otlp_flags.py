"""The flags of ``superfluid serve`` that push spans and metrics to an OpenTelemetry collector."""

import click

from superfluid.cli.commands import Flag
from superfluid.config import OtlpConfig

OTLP = "OpenTelemetry"


def otlp_flags() -> list[click.Parameter]:
    defaults = OtlpConfig()
    return [
        Flag(
            ["--otlp-endpoint"],
            panel=OTLP,
            metavar="URL",
            default_text="off",
            help="Push spans to this collector.",
            rule="`http://` only; `/v1/traces` is added. For TLS, let a collector on this machine forward.",
        ),
        Flag(
            ["--otlp-metrics"],
            panel=OTLP,
            metavar="URL",
            default_text="off",
            help="Push the metrics of /metrics to this collector.",
            rule="`http://` only; `/v1/metrics` is added.",
        ),
        Flag(
            ["--otlp-header", "otlp_headers"],
            panel=OTLP,
            multiple=True,
            metavar="NAME=VALUE",
            default_text="none",
            help="A header for every push; repeatable.",
            rule="Plain ASCII.",
        ),
        Flag(
            ["--otlp-service-name"],
            panel=OTLP,
            default=defaults.service_name,
            metavar="NAME",
            default_text=defaults.service_name,
            help="The service.name of what is pushed.",
            rule="Not empty.",
        ),
        Flag(
            ["--otlp-filter"],
            panel=OTLP,
            default=defaults.span_filter,
            metavar="DIRECTIVE",
            default_text=f"{defaults.span_filter}",
            help="Which spans are pushed, in the form of --log-filter.",
            rule="`info` leaves out the span of each tick. Another form than that ends the start with 2.",
        ),
        Flag(
            ["--otlp-queue"],
            panel=OTLP,
            type=int,
            default=defaults.queue_spans,
            metavar="N",
            default_text=str(defaults.queue_spans),
            help="Spans that may wait; more are dropped and counted.",
            rule="Above 0.",
        ),
        _milliseconds("--otlp-batch-ms", defaults.batch_seconds, "How often spans are sent."),
        _milliseconds("--otlp-timeout-ms", defaults.timeout_seconds, "How long one push may take."),
        _milliseconds("--otlp-interval-ms", defaults.interval_seconds, "How often metrics are pushed."),
    ]


def _milliseconds(name: str, default_seconds: float, text: str) -> Flag:
    milliseconds = default_seconds * 1000
    return Flag(
        [name],
        panel=OTLP,
        type=float,
        default=milliseconds,
        metavar="MS",
        default_text=f"{milliseconds:.0f}",
        help=text,
        rule="Above 0.",
    )
