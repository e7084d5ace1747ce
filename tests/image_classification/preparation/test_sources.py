"""Images of a folder in the order of a store, and their digest."""

from collections import Counter

from image_classification.preparation.sources import open_source
from tests.image_classification.preparation.built_stores import silent
from tests.image_classification.preparation.samples import CLASSES


def test_training_images_are_stored_mixed_and_evaluation_images_by_class(tmp_path, images):
    splits = open_source(images, silent).splits
    labels = [item.label for item in splits["train"]]
    assert labels != sorted(labels)
    assert Counter(labels) == {0: 10, 1: 10, 2: 10}
    assert min(len(set(labels[begin : begin + 10])) for begin in (0, 10, 20)) > 1
    names = [item.name for item in splits["evaluation"]]
    assert names == sorted(names)
    assert open_source(images, silent).splits == splits


def test_the_digest_tells_other_names_labels_and_sizes(tmp_path, images):
    digests = {open_source(images, silent).sha256}
    path = images / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    digests.add(open_source(images, silent).sha256)
    path.rename(path.with_name("other.JPEG"))
    digests.add(open_source(images, silent).sha256)
    path.with_name("other.JPEG").rename(images / "train" / CLASSES[1] / "other.JPEG")
    digests.add(open_source(images, silent).sha256)
    assert len(digests) == 4
