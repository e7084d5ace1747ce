"""List of the files that a run reads."""

from dataclasses import replace
from pathlib import Path

from image_classification.configs import digits_methods
from image_classification.stores.data_files import data_files
from image_classification.stores.manifest import Format, StoreConfig, read_manifest
from tests.image_classification.small_image_data import FOLDER


def test_the_files_of_a_store_are_those_that_a_run_reads(prepared: dict[Format, Path]) -> None:
    found = data_files(replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=24)), prepared["raw"])
    assert found is not None
    names = [path.relative_to(prepared["raw"]).as_posix() for path in found]
    assert names[0].startswith("train") and names[-1].startswith("evaluation_20")
    assert set(names) == set(read_manifest(prepared["raw"]).files)
    assert found.bytes == sum(path.stat().st_size for path in found)
    assert [found[place] for place in range(len(found))] == list(found)
    folder = data_files(FOLDER, prepared["folder"])
    assert folder is not None
    paths = list(folder)
    assert (len(folder), len(paths)) == (35, 35)
    assert folder.bytes == sum(path.stat().st_size for path in paths)
    assert [folder[place] for place in range(len(folder))] == paths
    assert data_files(digits_methods().data, None) is None
