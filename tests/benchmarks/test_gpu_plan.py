"""What gpu.py measures, in which order."""

from __future__ import annotations

from on_gpus.plan import plan

SETS = {"mnist": "mnist.npz", "cifar10": "cifar10.npz"}


def planned(device, gpus):
    return plan(device, gpus, ["mnist_cnn", "resnet20"], SETS, 256)


def outline(groups):
    return [(group.part, *(group.common[key] for key in ("model", "on") if key in group.common)) for group in groups]


def test_one_gpu_is_compared_with_fit_then_split():
    groups = planned("gpu", 1)
    assert outline(groups) == [
        ("one device", "mnist_cnn"),
        ("equivalence", "logical GPUs"),
        ("one device", "resnet20"),
        ("precision", "resnet20"),
        ("scaling", "resnet20", "logical GPUs"),
        ("scaling", "mnist_cnn", "logical GPUs"),
        ("precision", "mnist_cnn"),
    ]
    assert list(groups[0].jobs)[:3] == ["fit", "Loop", "fit, no XLA"], "the most telling first"
    (fit,) = groups[0].jobs["fit"].members
    assert groups[0].jobs["fit"].target.endswith(":Fit")
    assert "jit_compile" not in fit.arguments, "Keras's own default"
    assert fit.arguments["data"] == "mnist.npz"
    assert fit.environment == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "several processes share the GPU's memory"
    splits = {name: job.members[0].arguments.get("split_gpu") for name, job in groups[4].jobs.items()}
    assert splits == {("baseline", 1, 256): None, ("strong", 2, 256): 2, ("strong", 4, 256): 4}
    assert [job.members[0].arguments["split_gpu"] for job in groups[1].jobs.values()] == [2, 4]
    assert groups[4].shared == {2, 4}


def test_several_gpus_are_scaled_over_before_other_models_have_their_turn():
    groups = planned("gpu", 4)
    on = outline(groups)
    assert on[2:4] == [("scaling", "resnet20", "GPUs"), ("equivalence", "GPUs")]
    assert ("scaling", "mnist_cnn", "GPUs") in on
    assert list(groups[2].jobs) == [
        *(("baseline", 1, 256), ("strong", 4, 256), ("weak", 4, 1024)),
        *(("strong", 2, 256), ("weak", 2, 512)),
    ]
    for job in (*groups[2].jobs.values(), *groups[3].jobs.values()):
        assert "split_gpu" not in job.members[0].arguments
    assert not groups[2].shared
    (everything,) = groups[on.index(("all-reduce",))].jobs.values()
    (member,) = everything.members
    assert member.arguments["devices"] == "gpu:4"


def test_a_rehearsal_has_all_parts_and_hides_gpus():
    groups = planned("cpu", 2)
    assert [group.part for group in groups] == [group.part for group in planned("gpu", 2)]
    for group in groups:
        for job in group.jobs.values():
            (member,) = job.members
            assert member.environment["CUDA_VISIBLE_DEVICES"] == ""
            assert "split_gpu" not in member.arguments
