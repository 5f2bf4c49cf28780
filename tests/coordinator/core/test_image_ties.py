"""Of equally good nodes a job goes to one that has its image; anything else comes before that."""

from gpuyard_coordinator.core import images
from tests.support.yard import Yard


def yard_where(image: str, node: str, *, gpus: int = 2) -> Yard:
    """Three empty nodes, on one of which the image has run."""
    yard = Yard()
    for name in "abc":
        yard.node(name, gpus=gpus)
    yard.submit("first", image=image, gpus=1, node=node)
    yard.plan()
    yard.start("first")
    yard.end("first", exit_code=0)
    return yard


def node_of(yard: Yard, id: str) -> str:
    attempt = yard.job(id).last
    return attempt.node if attempt is not None else ""


def test_a_job_goes_where_its_image_has_run() -> None:
    yard = yard_where("big", "c")
    yard.submit("same", image="big", gpus=1)
    yard.plan()
    yard.end("same", exit_code=0)
    yard.submit("other", image="small", gpus=1)
    yard.submit("whole", image="big", gpus=2)
    yard.plan()

    assert node_of(yard, "other") == "a"
    assert node_of(yard, "whole") == "c"


def test_a_better_place_goes_before_an_image() -> None:
    yard = yard_where("big", "c")
    yard.submit("beside", image="small", gpus=1, node="b")
    yard.plan()
    yard.submit("j", image="big", gpus=1)
    yard.plan()

    assert node_of(yard, "j") == "b"


def test_a_node_that_has_the_image_and_takes_no_work_is_passed_over() -> None:
    yard = yard_where("big", "c")
    yard.cordon("c")
    yard.submit("j", image="big", gpus=1)
    yard.plan()
    assert node_of(yard, "j") == "a"


def test_a_node_that_pulls_an_image_had_it_no_more() -> None:
    yard = yard_where("big", "c")
    yard.submit("j", image="big", gpus=1)
    yard.plan()
    assert node_of(yard, "j") == "c"
    yard.report("j", state="preparing", pull={"done_bytes": 1, "total_bytes": 9})

    assert "c" not in images.present_on(yard.cluster, "big")
    yard.submit("k", image="big", gpus=2)
    yard.plan()
    assert node_of(yard, "k") == "a"


def test_the_next_leader_learns_it_from_what_runs() -> None:
    yard = yard_where("big", "c")
    yard.submit("runs", image="big", cpus=1, node="b")
    yard.plan()
    yard.start("runs")
    yard.restart()
    for name in "abc":
        yard.beat(name)

    assert list(images.present_on(yard.cluster, "big")) == ["b"]


def test_as_many_nodes_as_are_kept_are_the_latest() -> None:
    yard = Yard()
    for number in range(images.NODES_KEPT + 2):
        yard.node(f"n{number:02}")
        yard.submit(f"j{number}", image="big", node=f"n{number:02}")
    yard.plan()
    for number in range(images.NODES_KEPT + 2):
        yard.start(f"j{number}")

    known = list(images.present_on(yard.cluster, "big"))
    assert len(known) == images.NODES_KEPT and known[-1] == f"n{images.NODES_KEPT + 1:02}"
    assert "n00" not in known
