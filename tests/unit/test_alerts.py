"""Alert rules, dashboard and the pages of monitoring speak of what there is, and the rules work."""

import ast
import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

import binlog2s3
from binlog2s3.config.outside import DEFAULT
from binlog2s3.serve.status import applications
from binlog2s3.status import http as endpoint
from binlog2s3.status import model as status
from binlog2s3.status.metrics import METRICS, PROCESS_METRICS
from binlog2s3.status.model import Measurements, judge
from tests.unit.serve.test_ask import STATUS_OF
from tests.unit.status.test_metrics import FULL, OWN, render
from tests.unit.test_docs import page, rows

DOCS = Path(__file__).parents[2] / "docs"
RULES = (DOCS / "alerts.yml").read_text(encoding="utf-8")
RULES_TEST = (DOCS / "alerts-test.yml").read_text(encoding="utf-8")
MONITORING = (DOCS / "guides/monitoring.md").read_text(encoding="utf-8")
TROUBLES = page("troubles")
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
NAME = r"\b(?:binlog2s3|process)_[a-z][a-z0-9_]*"
LABELS = {metric.name: {"source", *metric.labels} for metric in METRICS}
(METRICS_OF_SERVE,) = applications(lambda: STATUS_OF, None)["/metrics"](
    {"REQUEST_METHOD": "GET", "PATH_INFO": "/"},
    lambda *_: None,  # type: ignore[arg-type,return-value]
)
OF_SERVE = {
    sample.name: (family.type, set(sample.labels), family.documentation)
    for family in text_string_to_metric_families(METRICS_OF_SERVE.decode())
    for sample in family.samples
}
LABELS |= {
    f"{metric.name}{suffix}": {"source", *metric.labels, *({"le"} if suffix == "_bucket" else ())}
    for metric in PROCESS_METRICS
    for suffix in ("", *(("_bucket", "_sum", "_count") if metric.kind == "histogram" else ()))
}
LABELS |= {name: labels for name, (_, labels, _) in OF_SERVE.items()}
OF_PROCESS = set(re.findall(r"^# TYPE (process_\S+)", render(FULL, OWN).decode(), re.MULTILINE))
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""


def rules() -> dict[str, str]:
    """Each alert with the text of its rule."""
    blocks = re.split(r"(?m)^      - alert: ", RULES)[1:]
    return {block.split("\n", 1)[0]: block for block in blocks}


def expression(rule: str) -> str:
    """What stands at `expr`, on one line."""
    found = re.search(r"(?m)^        expr:(?: >-)?((?:.*)(?:\n          .*)*)", rule)
    assert found
    return " ".join(found[1].split())


def panels() -> list[dict[str, Any]]:
    """All that the dashboard shows, its headings left out."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """Those of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


EXPRESSIONS = [*map(expression, rules().values()), *queries()]


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    """In its selectors, and where it joins and groups."""
    named = set(re.findall(NAME, query))
    assert named or query.startswith("up{")
    assert named <= {*LABELS, *OF_PROCESS}
    for name, selector in re.findall(rf"({NAME})\{{([^}}]*)\}}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= LABELS[name] | SCRAPED
    known = set().union(*(LABELS[name] for name in named & set(LABELS))) | SCRAPED
    for group in re.findall(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= known


def test_a_rate_is_of_a_counter_and_nothing_else_is_counted() -> None:
    """And a counter is never shown as it is: a restart sets it back."""
    for query in EXPRESSIONS:
        counted = set(re.findall(rf"\b(?:rate|increase)\(({NAME})", query))
        counters = r"_(total|bucket|sum|count)$"
        assert counted == {name for name in re.findall(NAME, query) if re.search(counters, name)}


@pytest.mark.parametrize("alert", rules())
def test_an_alert_has_what_people_need(alert: str) -> None:
    """Who is called, what it is about, and only labels that it can have."""
    rule = rules()[alert]
    assert re.fullmatch(r"Binlog2s3[A-Z][A-Za-z]+", alert)
    assert re.search(r"severity: (warning|critical)\n", rule)
    assert "summary: " in rule
    assert "description: " in rule
    known = set().union(*LABELS.values()) | SCRAPED
    assert set(re.findall(r"\$labels\.(\w+)", rule)) <= known
    assert set(re.findall(NAME, rule)) <= set(LABELS)


def test_each_alert_leads_to_its_section() -> None:
    """Of a page that exists, by the anchor that a heading of it gets; and no section is spare."""
    sections = set()
    for alert, rule in rules().items():
        (url,) = re.findall(r"(?m)^          runbook_url: (\S+)$", rule)
        path, _, anchor = url.partition("#")
        text = (DOCS.parent / path).read_text(encoding="utf-8")
        sections |= set(re.findall(r"(?m)^### (Binlog2s3\w+)$", text))
        assert f"\n### {alert}\n" in text
        assert anchor == alert.lower()
    assert sections == set(rules())


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    """Each rule with its severity, how long it must hold, and its expression."""
    page_of_alerts = (DOCS / "guides/alerts.md").read_text(encoding="utf-8")
    expected = []
    for alert, rule in rules().items():
        severity = re.findall(r"severity: (\w+)\n", rule)
        wait = re.findall(r"(?m)^        for: (\S+)$", rule) or ["at once"]
        shown = expression(rule).replace("|", r"\|")
        expected.append([f"[{alert}](#{alert.lower()})", *severity, *wait, f"`{shown}`"])
    assert list(rows(page_of_alerts, "alert")) == expected


def test_each_alert_is_seen_to_fire() -> None:
    """By the rules' own test, which names no other one."""
    fires = set()
    for case in re.split(r"(?m)^      - (?=eval_time)", RULES_TEST)[1:]:
        name = re.search(r"alertname: (\w+)\n\s+exp_alerts:", case)
        if name is not None:
            fires.add(name[1])
    assert fires == set(rules())
    assert set(re.findall(r"alertname: (\w+)", RULES_TEST)) == set(rules())


def test_the_rules_do_as_their_test_says(promtool: Path) -> None:
    """Each fires when it should and is quiet before, and when all is well."""
    argv = [promtool, "test", "rules", DOCS / "alerts-test.yml"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_the_rules_for_timers_fire_when_they_should(promtool: Path, tmp_path: Path) -> None:
    """monitoring.md's, for node_exporter: late, gone, failed, and nothing of a timer that runs."""
    (block,) = re.findall(r"(?ms)^  ```yaml\n(  groups:.*?)^  ```", MONITORING)
    (tmp_path / "timers.yml").write_text(textwrap.dedent(block))
    trigger = "node_systemd_timer_last_trigger_seconds"
    series = {
        f'{trigger}{{instance="a", name="binlog2s3-prune@late.timer"}}': "0x240",
        f'{trigger}{{instance="a", name="binlog2s3-prune@fine.timer"}}': "0+3600x240",
        f'{trigger}{{instance="a", name="binlog2s3-verify@fine.timer"}}': "0+3600x240",
        f'{trigger}{{instance="a", name="binlog2s3-drill@gone.timer"}}': "0x24",
        'node_systemd_unit_state{instance="a", name="binlog2s3-prune@x.service", state="failed"}': (
            "0x100 1x140"
        ),
    }
    expected = {"Late": "prune@late.timer", "Gone": "drill@gone.timer", "Failed": "prune@x.service"}
    names = {"Late": "TimerLate", "Gone": "TimerGone", "Failed": "UnitFailed"}
    case = {
        "interval": "1h",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (name) (ALERTS{{alertname="{names[what]}", '
                'alertstate="firing"})',
                "eval_time": "120h",
                "exp_samples": [{"labels": f'{{name="binlog2s3-{name}"}}', "value": 1}],
            }
            for what, name in expected.items()
        ],
    }
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": ["timers.yml"], "evaluation_interval": "1h", "tests": [case]})
    )
    done = subprocess.run(
        [promtool, "test", "rules", file], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_understands_the_dashboards_queries(promtool: Path, tmp_path: Path) -> None:
    """With what Grafana puts in the place of its variables."""
    found = [
        query.replace("$__rate_interval", "1m").replace("$source", "orders|users")
        for query in queries()
    ]
    assert not [query for query in found if "$" in query]
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(found)]
    file = tmp_path / "queries.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    argv = [promtool, "check", "rules", file]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout + done.stderr


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Ids once, a unit on each panel, its variables used, nothing on top of another."""
    everything = DASHBOARD["panels"]
    ids = [panel["id"] for panel in everything]
    assert len(set(ids)) == len(ids)
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["id"] is None
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "source"]
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'source=~"$source"' in target["expr"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_the_dashboard_shows_the_last_proven_recovery() -> None:
    """It changes its colour when the alert fires."""
    (panel,) = (one for one in panels() if "drill_proven_timestamp" in str(one["targets"]))
    rule = expression(rules()["Binlog2s3DrillTooOld"])
    shown = panel["targets"][0]["expr"].replace('{source=~"$source"}', "")
    _, orange = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert rule == f"{shown} > {orange['value'] // 86400} * 86400"


def test_units_of_panels_fit_their_metrics() -> None:
    """Bytes are shown as bytes, rates of them as bytes a second, seconds as seconds or times."""
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for query in (target["expr"] for target in panel["targets"]):
            (name, *_) = re.findall(NAME, query)
            rated = "rate(" in query
            if name.endswith("_seconds_bucket"):
                assert unit == "s", query
            elif "bytes" in name:
                assert unit == ("Bps" if rated else "bytes"), query
            elif "timestamp_seconds" in name:
                assert unit == ("s" if "time() - " in query else "dateTimeAsIso"), query
            elif name.endswith("_seconds"):
                assert unit == "s", query
            elif name == "process_cpu_seconds_total":
                assert unit == "percentunit", query
            else:
                assert unit == ("ops" if rated else "none"), query


def unit_of(metric: str) -> str:
    """Seconds, bytes, or "" for a count: the last word of the name."""
    last = metric.removesuffix("_total").rpartition("_")[2]
    return last if last in {"seconds", "bytes"} else ""


def test_metrics_are_in_the_document_and_no_other() -> None:
    """With type, unit, labels, field and meaning."""
    documented = [tuple(row) for row in rows(page("metrics"), "metric")]
    assert documented == [
        (
            f"`{metric.name}`",
            metric.kind,
            unit_of(metric.name),
            ", ".join(f"`{label}`" for label in metric.labels),
            f"`{metric.field}`",
            metric.help,
        )
        for metric in METRICS
    ]


def test_the_metrics_of_the_process_are_in_the_document_and_on_the_dashboard() -> None:
    """Each one, and no other."""
    documented = [tuple(row) for row in rows(page("metrics"), "metric of the process")]
    assert documented == [
        (
            f"`{metric.name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help,
        )
        for metric in PROCESS_METRICS
    ]
    shown = {name for query in queries() for name in re.findall(NAME, query)}
    histograms = {f"{one.name}_bucket" for one in PROCESS_METRICS if one.kind == "histogram"}
    assert histograms <= shown


def test_the_metrics_of_serve_are_in_the_document_and_on_the_dashboard() -> None:
    """Each one, and no other."""
    documented = {
        row[0].strip("`"): (row[1], {*re.findall(r"`(\w+)`", row[2]), "source"}, row[3])
        for row in rows(page("metrics"), "metric of serve")
    }
    assert documented == OF_SERVE
    shown = {name for query in queries() for name in re.findall(NAME, query)}
    assert set(OF_SERVE) <= shown


def test_the_document_names_no_metric_or_alert_that_does_not_exist() -> None:
    """In its text, and in the comments of the rules."""
    for text in (MONITORING, page("metrics"), TROUBLES, RULES, RULES_TEST):
        assert set(re.findall(r"\bbinlog2s3_[a-z_]+", text)) <= set(LABELS)
        assert set(re.findall(r"\bBinlog2s3[A-Z]\w+", text)) <= set(rules())


def troubles() -> set[str]:
    """The codes that the package gives, where they are written out."""
    found = set()
    for path in Path(binlog2s3.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "rouble" not in text:  # reading all of it takes a while
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            codes = [word.value for word in node.keywords if word.arg == "code"]
            codes += node.args[:1] if called == "_trouble" else []
            if called in ("Trouble", "_trouble"):
                found |= {code.value for code in codes if isinstance(code, ast.Constant)}
    return found


def test_troubles_are_documented() -> None:
    """Each code, and no other."""
    documented = [row[0].strip("`") for row in rows(TROUBLES, "trouble")]
    assert len(set(documented)) == len(documented)
    assert set(documented) == troubles()


READING = {
    "starting": "phase_seconds",
    "source": "source_silent",
    "store": "store_failing",
    "heartbeat": "beat_late",
    "paused": "paused",
    "stalled": "read_idle",
    "stuck": "loop_idle",
}


def critical(code: str, seconds: float, reading: str) -> bool:
    """Whether the trouble is, when that reading is so high."""
    phase = "starting" if code == "starting" else "running"
    error = "down" if code == "source" else ""
    measured = Measurements(phase=phase, source_error=error, **{reading: seconds})  # type: ignore[arg-type]
    levels = {trouble.code: trouble.level for trouble in judge(measured)[1]}
    return levels.get(code) == "critical"


def test_what_turns_health_is_as_documented() -> None:
    """A second before it is a warning or nothing, then it is critical; others are so at once."""
    table = {row[0].strip("`"): row for row in rows(TROUBLES, "trouble") if len(row) == 3}
    timed = {code: row[1] for code, row in table.items() if re.fullmatch(r"[0-9]+ s", row[1])}
    assert set(timed) == set(READING)
    for code, after in timed.items():
        seconds = float(after.removesuffix(" s"))
        assert not critical(code, seconds - 1, READING[code]), code
        assert critical(code, seconds, READING[code]), code
    assert f"after {DEFAULT.store_silent_seconds:.0f} s also" in table["store"][2]
    assert not critical("store", DEFAULT.store_silent_seconds - 1, "store_silent")
    assert critical("store", DEFAULT.store_silent_seconds, "store_silent")
    assert f"older than {endpoint.STALE_SECONDS:.0f} s" in table["stale"][2]
    assert f"and {endpoint.CONNECTIONS}" not in MONITORING
    assert f"{endpoint.CONNECTIONS} are served at a time" in MONITORING.replace("\n", " ")


def test_states_are_documented() -> None:
    """Each, and which are well."""
    documented = {row[0].strip("`"): row[1] == "yes" for row in rows(TROUBLES, "state")}
    assert documented == {state: state in status.WELL for state in get_args(status.State)}
