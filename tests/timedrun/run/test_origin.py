"""Origin of a run: image digest and identity of the data."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from image_classification.configs import imagenet_baseline, synthetic_smoke
from judging.ground.errors import UsageError
from timedrun.benchmark import find
from timedrun.run import origin

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("given", "digest"),
    [
        ("", None),
        *((text, DIGEST) for text in (DIGEST, f"registry.internal:5000/team/image@{DIGEST}", f" {DIGEST}\n")),
        *((text, UsageError) for text in ("latest", "sha256:12", DIGEST.upper(), f"x{DIGEST}", f"{DIGEST}0")),
    ],
)
def test_a_digest_is_kept_without_its_registry_and_an_invalid_one_is_refused(given, digest, monkeypatch):
    monkeypatch.setenv(origin.IMAGE_DIGEST, given)
    if digest is UsageError:
        with pytest.raises(UsageError, match="TIMEDRUN_IMAGE_DIGEST is .* not a digest"):
            origin.image_digest()
    else:
        assert origin.image_digest() == digest
    monkeypatch.delenv(origin.IMAGE_DIGEST)
    assert origin.image_digest() is None


def test_the_datas_identity_is_added_to_what_is_known_already(tmp_path):
    path = tmp_path / "provenance.json"
    path.write_text(json.dumps({"commit": "abc", "data": None}))
    origin.add_data(path, find("image_classification"), synthetic_smoke(), None, None)
    values = json.loads(path.read_text())
    assert values["commit"] == "abc"
    assert values["data"]["name"] == "synthetic"
    assert len(values["data"]["sha256"]) == 64
    assert values["data"]["of"].startswith("counts and shapes")


def test_data_that_cannot_be_read_are_unknown_and_name_no_folder(tmp_path):
    found = origin.data_identity(find("image_classification"), imagenet_baseline(), tmp_path)
    assert found == {"name": "imagenet", "sha256": None, "of": "unknown: DataError"}


def test_a_benchmark_without_a_digest_of_its_data_says_so(make_package):
    spec = "from timedrun.benchmark import BenchmarkSpec\n"
    spec += "SPEC = BenchmarkSpec(title='', mlperf_benchmark='resnet', ruleset='2.0.0', default_data='toy')\n"
    benchmark = find(make_package("no_digest_benchmark", spec))
    (Path(str(benchmark.package.__file__)).parent / "datasets.py").write_text("")
    identity = origin.data_identity(benchmark, replace(synthetic_smoke(), dataset="toy"), None)
    assert identity == {"name": "toy", "sha256": None, "of": "unknown: the benchmark has no data_digest"}


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_no_failure_of_the_digest_fails_a_finished_run(error, tmp_path, monkeypatch, capsys):
    path, benchmark = tmp_path / "p.json", MagicMock()
    path.write_text("{}")
    benchmark.hook.return_value.side_effect = error
    origin.add_data(path, benchmark, synthetic_smoke(), None, "abc")
    values = json.loads(path.read_text())
    assert values["data"]["of"] == f"unknown: {error.__name__}" and values["final_state"]["sha256"] == "abc"
    monkeypatch.setattr(origin, "read_json", MagicMock(side_effect=error))
    origin.add_data(path, benchmark, synthetic_smoke(), None, None)
    assert f"could not be added ({error.__name__})" in capsys.readouterr().err
