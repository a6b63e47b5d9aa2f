from __future__ import annotations

import json
import os

import pytest

import mirrorkit as mk
from mirrorkit.cluster import Cluster, detect
from mirrorkit.cluster.slurm import expand_counts, expand_hosts
from mirrorkit.errors import ClusterError, MirrorkitError


def tf_config(cluster, task=("worker", 0)):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})}


def slurm(**changes):
    step = {
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_NODELIST": "gpu[01-02],login",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_PROCID": "3",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_ID": "0",
    }
    return {**step, **changes}


def pod(**changes):
    variables = {
        "JOB_COMPLETION_INDEX": "2",
        "HOSTNAME": "train-mnist-2",
        "MIRRORKIT_WORKERS": "3",
        "MIRRORKIT_SERVICE": "trainers",
    }
    return {**variables, **changes}


TWO = {"worker": ["a:1", "b:2"]}


def test_nothing_set_is_no_cluster_and_the_default_is_this_process(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert detect({}) is None
    assert detect() is None
    monkeypatch.setenv("TF_CONFIG", tf_config(TWO)["TF_CONFIG"])
    assert detect() == detect(os.environ) == Cluster(workers=("a:1", "b:2"), source="TF_CONFIG")


@pytest.mark.parametrize(
    ("environ", "expected", "text"),
    [
        (
            tf_config(TWO, ("worker", 1)),
            Cluster(workers=("a:1", "b:2"), task_index=1, source="TF_CONFIG"),
            "worker 1 of 2 workers (TF_CONFIG), b:2",
        ),
        (
            tf_config({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, ("ps", 0)),
            Cluster(workers=("b:1",), ps=("c:1",), chief="a:1", task_type="ps", source="TF_CONFIG"),
            "ps 0 of 1 worker and 1 ps (TF_CONFIG), c:1",
        ),
        (
            tf_config(TWO, ("evaluator", 0)),
            Cluster(workers=("a:1", "b:2"), task_type="evaluator", source="TF_CONFIG"),
            "evaluator 0 of 2 workers (TF_CONFIG)",
        ),
        (
            tf_config(TWO, ("worker", "1")),  # some services write the index as a string
            Cluster(workers=("a:1", "b:2"), task_index=1, source="TF_CONFIG"),
            "worker 1 of 2 workers (TF_CONFIG), b:2",
        ),
        (
            slurm(MIRRORKIT_PORT="3000"),
            Cluster(
                workers=("gpu01:3000", "gpu01:3001", "gpu02:3002", "gpu02:3003", "login:3004"),
                task_index=3,
                source="Slurm",
            ),
            "worker 3 of 5 workers (Slurm), gpu02:3003",
        ),
        (
            pod(),
            Cluster(
                workers=tuple(f"train-mnist-{i}.trainers:2222" for i in range(3)),
                task_index=2,
                source="Kubernetes Indexed Job",
            ),
            "worker 2 of 3 workers (Kubernetes Indexed Job), train-mnist-2.trainers:2222",
        ),
    ],
    ids=["workers", "ps", "evaluator", "string", "slurm", "pod"],
)
def test_each_environment_gives_its_cluster(environ, expected, text):
    found = detect(environ)
    assert found == expected
    assert str(found) == text
    assert all(json.loads(found.to_tf_config())["cluster"].values()), "a job without tasks is left out"
    again = detect({"TF_CONFIG": found.to_tf_config()})
    assert (again.addresses, again.task) == (found.addresses, found.task)


def test_tf_config_goes_before_slurm_and_slurm_before_a_pod():
    assert detect({**tf_config(TWO), **slurm(), **pod()}).source == "TF_CONFIG"
    assert detect({**slurm(), **pod()}).source == "Slurm"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "environ",
    [
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": {}, "task": {}}'},
        slurm(SLURM_STEP_NUM_TASKS="1"),
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "1"},  # a batch script outside of srun
        {"JOB_COMPLETION_INDEX": "1", "MIRRORKIT_WORKERS": "1"},  # pods that work each for itself
        pod(MIRRORKIT_WORKERS="1", HOSTNAME="x-0", JOB_COMPLETION_INDEX="0"),
    ],
)
def test_a_process_that_trains_alone_has_no_cluster(environ):
    assert detect(environ) is None


def test_a_pod_of_an_indexed_job_that_says_no_more_trains_alone_with_a_warning():
    with pytest.warns(UserWarning, match=r"trains alone.*MIRRORKIT_WORKERS") as told:
        assert detect({"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "sweep-1"}) is None
    assert told[0].filename == __file__


BAD_TF_CONFIGS = [
    ("", "cannot be read.*host1:2222"),
    ("{", "cannot be read"),
    ("[1]", "cannot be read .*list"),
    ("[" * 100_000, "cannot be read"),
    ('{"cluster": 3}', "cannot be read .*int"),
    ('{"cluster": {"worker": ["a:1"]}}', "KeyError: 'type'"),
    ('{"task": {"type": "worker", "index": 0}}', "no worker and no chief"),
    ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', "KeyError: 'index'"),
    ('{"sparseCluster": {"worker": {"0": "a:1"}}}', "enableDynamicWorker"),
    (tf_config({"master": ["a:1"], "worker": ["b:1"]}), "'master'"),
    (tf_config({"chief": ["a:1", "b:1"], "worker": ["c:1"]}), "list of one address"),
    (tf_config({"worker": "a:1"}), "must be a list"),
    (tf_config({"worker": {"0": "a:1"}}), "must be a list"),
    (tf_config(TWO, ("worker", 2)), "worker 2, but there are 2"),
    (tf_config(TWO, ("worker", -1)), "worker -1"),
    (tf_config(TWO, ("worker", 1.0)), "found 1.0"),
    (tf_config(TWO, ("worker", True)), "found True"),
    (tf_config(TWO, ("worker", "\u00b2")), "invalid literal .* '\u00b2'"),
    (tf_config(TWO, ("worker", "1" * 5000)), "cannot be read .*limit"),
    (tf_config(TWO, ("chief", 0)), "chief 0, but there are 0"),
    (tf_config(TWO, ("trainer", 0)), "type 'trainer'"),
    (tf_config({"worker": ["a:0", "b:1"]}), "worker 0 .*'a:0'.*65535"),
    (tf_config({"worker": ["a:65536", "b:1"]}), "65535"),
    (tf_config({"worker": ["a:1", "b"]}), "worker 1 .*'b'.* host:port"),
    (tf_config({"worker": ["a:1", "b:"]}), "host:port"),
    (tf_config({"worker": ["a:1", "b:" + "1" * 5000]}), "host:port"),
    (tf_config({"worker": ["a:1", "b:\u0661\u0662"]}), "host:port"),
    (tf_config({"worker": ["a:1", "\u001b[31mb:1"]}), "host:port"),
    (tf_config({"worker": ["grpc://a:1"]}), "no 'grpc://'"),
    (tf_config({"worker": ["a:1", None]}), "worker 1 has the address None"),
    (tf_config({"worker": ["a:1", "b:1", "a:1"]}), "worker 0 and worker 2 .* a:1"),
    (tf_config({"chief": ["a:1"], "worker": ["a:1", "b:1"]}), "chief and worker 0.*out of the workers"),
    (tf_config({"worker": ["a:1"], "ps": ["a:1"]}), "worker 0 and ps 0"),
    (tf_config({"ps": ["a:1"]}, ("ps", 0)), "no worker and no chief"),
]


@pytest.mark.parametrize(("config", "message"), BAD_TF_CONFIGS, ids=lambda value: str(value)[:40])
def test_a_wrong_tf_config_is_an_error_that_says_what_is_wrong(config, message):
    environ = config if isinstance(config, dict) else {"TF_CONFIG": config}
    with pytest.raises(ClusterError, match=rf"(?s)TF_CONFIG.*{message}") as caught:
        detect(environ)
    assert isinstance(caught.value, (MirrorkitError, ValueError))


def without(environ, name):
    return {key: value for key, value in environ.items() if key != name}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (without(slurm(), "SLURM_STEP_NODELIST"), "without SLURM_STEP_NODELIST"),
        (slurm(SLURM_PROCID="x"), "SLURM_PROCID .* 'x'"),
        (slurm(SLURM_PROCID="1" * 5000), "SLURM_PROCID .* '1"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="2(x2)"), "contradict each other"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="2(x2),2"), "contradict each other"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="two"), "such as 2"),
        (slurm(SLURM_STEP_TASKS_PER_NODE="1(x9999999999)"), "such as 2"),
        (slurm(SLURM_NODEID="2"), "srun --distribution=block"),  # cyclic: rank 3 on the third node
        (slurm(SLURM_PROCID="5"), "srun --distribution=block"),
        (slurm(OMPI_COMM_WORLD_SIZE="5"), "started by mpirun.*srun"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "started by mpirun.*TF_CONFIG"),
        (slurm(MIRRORKIT_PORT="65533"), "worker 3 .*gpu02:65536"),
        (without(pod(), "JOB_COMPLETION_INDEX"), "completionMode: Indexed"),
        (without(pod(), "MIRRORKIT_SERVICE"), "MIRRORKIT_SERVICE not set"),
        (without(pod(), "MIRRORKIT_WORKERS"), "MIRRORKIT_WORKERS not set"),
        (pod(MIRRORKIT_WORKERS="0"), "MIRRORKIT_WORKERS .*from 1 to 10000, found 0"),
        (pod(MIRRORKIT_WORKERS="three"), "MIRRORKIT_WORKERS .*three"),
        (pod(MIRRORKIT_WORKERS="100000000"), "MIRRORKIT_WORKERS .*10000"),
        (pod(MIRRORKIT_PORT="0"), "65535"),
        (pod(MIRRORKIT_WORKERS="2"), "worker 2, but there are 2"),
        (pod(HOSTNAME="node17"), "called <job>-2"),
        (pod(HOSTNAME="train-mnist-1"), "called <job>-2"),
    ],
)
def test_a_wrong_environment_is_an_error_that_says_what_to_do(environ, message):
    with pytest.raises(ClusterError, match=message):
        detect(environ)


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("n[1-2]", ["n1", "n2"]),
        ("one", ["one"]),
        ("a,b-1,c[9-11]", ["a", "b-1", "c9", "c10", "c11"]),
        ("rack[1-2]n[08-09].lan", ["rack1n08.lan", "rack1n09.lan", "rack2n08.lan", "rack2n09.lan"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_host_lists_expand_as_scontrol_does(expression, hosts):
    assert expand_hosts(expression) == hosts


@pytest.mark.parametrize("expression", ["n[a]", "n[]", "n[1-]", "n[1-2-3]", "n[1-9999999999]", "n[1-2", "n[1-"])
def test_a_host_list_without_numbers_in_its_brackets_is_refused(expression):
    with pytest.raises(ClusterError, match="SLURM_STEP_NODELIST"):
        expand_hosts(expression)


def test_counts_expand():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]


def test_slurm_ports_stay_apart_between_jobs_and_steps_and_below_those_that_linux_hands_out():
    def ports(job, step):
        found = detect(slurm(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)))
        return {int(address.split(":")[1]) for address in found.workers}

    runs = [ports(job, step) for job in (1000, 1001, 1002) for step in (0, 1)]
    assert len(set.union(*runs)) == 6 * 5
    assert max(ports(991, 62)) < 32768
    assert min(ports(1000, 0)) > 1024


@pytest.mark.parametrize(
    ("cluster", "chiefs", "workers"),
    [
        ({"worker": ["a:1", "b:1"]}, ["worker 0"], 2),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, ["chief"], 3),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, ["chief"], 2),  # the chief coordinates only
    ],
)
def test_there_is_one_chief_and_it_counts_as_a_worker_unless_it_coordinates(cluster, chiefs, workers):
    tasks = [(job, i) for job, addresses in cluster.items() for i in range(len(addresses))] + [("evaluator", 0)]
    found = [detect(tf_config(cluster, task)) for task in tasks]
    assert [c.task for c in found if c.is_chief] == chiefs
    assert {c.num_workers for c in found} == {workers}


def test_a_cluster_may_be_made_by_hand_from_lists():
    cluster = Cluster(workers=["[::1]:2222", "127.0.0.1:2223"], task_index=1)
    assert mk.cluster.detect({"TF_CONFIG": cluster.to_tf_config()}).workers == ("[::1]:2222", "127.0.0.1:2223")
