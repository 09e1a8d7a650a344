"""A report reads each object of its run once."""

from collections import Counter

from support.serving import surveyed_run

from theodolite.store import manifest, objects, result_reader
from theodolite.store.layout import COMPLETE
from theodolite_jobs.report.page import render_report


def test_a_report_reads_complete_and_each_object_of_the_results_once(tmp_path, monkeypatch):
    run = surveyed_run(tmp_path)
    reads: Counter[str] = Counter()
    for module in (manifest, objects, result_reader):

        def counted(location, key, read=module.get):
            reads[key] += 1
            return read(location, key)

        monkeypatch.setattr(module, "get", counted)
    render_report(run)
    assert reads[COMPLETE] == 1
    assert "results.zarr/curves/zarr.json" in reads
    # The contrasts and options of the results stand in the metadata of groups, and are read without their arrays.
    assert {key: count for key, count in reads.items() if count > 1} == {
        "results.zarr/curves/zarr.json": 2,
        "results.zarr/gram/zarr.json": 2,
    }
