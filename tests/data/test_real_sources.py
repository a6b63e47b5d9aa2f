"""source on the objects of other libraries: the rows are those of `batches`, on one worker and on several."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from own_items import Items
from recipe_helpers import SPLIT, assert_same, assert_workers_read_the_same, collect

from mirrorkit import data
from mirrorkit.errors import DataError, RecipeError

X, Y = SPLIT.images, SPLIT.labels

Made = tuple[Any, Callable[..., Any] | None]  # the object, and the map that makes (x, y) of its items


def needs(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library}: pip install -e '.[sources]'")


def hdf5(folder: Path) -> Made:
    import h5py

    with h5py.File(folder / "set.h5", "w") as file:
        file.create_dataset("images", data=X, chunks=(4, 16, 16, 3), compression="gzip")
        file["labels"] = Y.astype(np.uint8)
    file = h5py.File(folder / "set.h5")
    return (file["images"], file["labels"]), None


def zarr_arrays(folder: Path) -> Made:
    needs("zarr")
    import zarr

    for name, array in (("images", X), ("labels", Y)):
        options = {"shape": array.shape, "dtype": array.dtype, "chunks": (4, *array.shape[1:])}
        zarr.open(str(folder / name), mode="w", **options)[:] = array
    return (zarr.open(str(folder / "images"), mode="r"), zarr.open(str(folder / "labels"), mode="r")), None


def hugging_face(folder: Path) -> Made:
    needs("datasets", "PIL")
    import datasets
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    made = datasets.Dataset.from_dict({"image": list(map(Image.fromarray, X)), "label": Y.tolist()}, features)
    made.save_to_disk(str(folder / "set"))
    return datasets.load_from_disk(str(folder / "set")), lambda item: (item["image"], item["label"])


def tfds_data_source(folder: Path) -> Made:
    needs("tensorflow_datasets", "array_record")
    import tensorflow_datasets as tfds

    class Drawn(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            image = tfds.features.Image(shape=(16, 16, 3))
            label = tfds.features.ClassLabel(num_classes=10)
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"image": image, "label": label}))

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for number, (image, label) in enumerate(zip(X, Y, strict=True)):
                yield number, {"image": image, "label": label}

    Drawn.pkg_dir_path = folder
    builder = Drawn(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    return builder.as_data_source(split="train"), lambda item: (item["image"], item["label"])


def array_record(folder: Path) -> Made:
    """Serialized examples, which a map of TensorFlow decodes."""
    needs("grain", "array_record")
    import grain.python as grain
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "set.array_record"), "group_size:1")
    for image, label in zip(X, Y, strict=True):
        writer.write(label.tobytes() + image.tobytes())
    writer.close()

    def decode(records: tf.Tensor) -> Any:
        label = tf.io.decode_raw(tf.strings.substr(records, 0, 8), tf.int64)[:, 0]
        image = tf.io.decode_raw(tf.strings.substr(records, 8, X[0].nbytes), tf.uint8)
        return tf.reshape(image, [-1, 16, 16, 3]), label

    return grain.ArrayRecordDataSource(str(folder / "set.array_record")), decode


def grain_map_dataset(folder: Path) -> Made:
    needs("grain")
    import grain.python as grain

    return grain.MapDataset.source(Items(255 - X, Y)).map(lambda item: (255 - item[0], item[1])), None


MAKERS = [hdf5, zarr_arrays, hugging_face, tfds_data_source, array_record, grain_map_dataset]


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_the_rows_are_those_of_batches_on_any_number_of_workers(make, tmp_path):
    items, function = make(tmp_path)
    split = SPLIT
    if make is tfds_data_source:  # its builder shuffles the examples
        order = np.array([np.flatnonzero((item["image"] == X).all((1, 2, 3)))[0] for item in items])
        assert sorted(order) == list(range(53))
        split = SPLIT[order]
    options = {"global_batch_size": 8, "shuffle": True, "seed": 2, "augment": [data.augment.flip()]}
    recipe = data.source(items, map=function, **options)
    same = data.batches(split, **options)
    assert_same(collect(recipe.dataset(1, 2)), collect(same.dataset(1, 2)))
    assert_workers_read_the_same(recipe, 0, 3, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [array_record, hugging_face])
def test_in_processes_too(make, tmp_path):
    items, function = make(tmp_path)
    options = {"global_batch_size": 16, "shuffle": True}
    recipe = data.source(items, map=function, processes=2, **options)
    assert_same(collect(recipe.dataset()), collect(data.batches(SPLIT, **options).dataset()))


def test_a_grain_dataset_without_an_end_is_refused():
    needs("grain")
    import grain.python as grain

    with pytest.raises(RecipeError, match="repeats without end"):
        data.source(grain.MapDataset.source([1, 2, 3]).repeat(), global_batch_size=2)


def test_what_holds_arrays_by_name_is_asked_for_its_arrays(tmp_path):
    needs("zarr")
    import h5py
    import zarr

    group = zarr.open_group(str(tmp_path / "zarr"), mode="w")
    group["images"], group["labels"] = X, Y
    with pytest.raises(DataError, match="item 0 of Group failed"):
        data.source(group, global_batch_size=2)
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["train/images"], file["train/labels"], file["version"] = X, Y, 3
        with pytest.raises(RecipeError, match="must hold arrays"):
            data.source(file, global_batch_size=2)
        assert data.source(file["train"], global_batch_size=2).num_examples == 53
        with pytest.raises(RecipeError, match="must hold arrays"):
            data.source(file.create_group("empty"), global_batch_size=2)


def test_a_part_of_a_hugging_face_set_is_asked_for(tmp_path):
    made, _ = hugging_face(tmp_path)
    import datasets

    with pytest.raises(RecipeError, match=r"DatasetDict.*Take one part"):
        data.source(datasets.DatasetDict(train=made), global_batch_size=2)
    with pytest.raises(RecipeError, match=r"IterableDataset.*__len__"):
        data.source(made.to_iterable_dataset(), global_batch_size=2)
