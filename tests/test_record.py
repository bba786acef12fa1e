"""Records behave as the standard frozen dataclass does."""

import copy
import dataclasses
import pickle

import pytest

from vitconv.record import dataclass


@dataclass(frozen=True)
class Ours:
    """A value."""

    a: int
    b: str = "b"
    c: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Theirs:
    """A value."""

    a: int
    b: str = "b"
    c: list[int] = dataclasses.field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class Same:
    """Equal to itself only."""

    a: int


@dataclass(frozen=True)
class Checked:
    """A value with a condition."""

    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((1, "x"), {}), ((), {"a": 2, "c": [3]}), ((1, "x", [4]), {})], ids=str
)
def test_fields_defaults_and_forms_are_the_standard_ones(args: tuple, kwargs: dict) -> None:
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert [f.name for f in dataclasses.fields(Ours)] == [f.name for f in dataclasses.fields(Theirs)]
    assert ours == Ours(*args, **kwargs)
    assert hash(ours) == hash(Ours(*args, **kwargs))
    assert dataclasses.replace(ours, a=9) == Ours(9, ours.b)


def test_equality_is_by_class_and_compared_fields() -> None:
    assert Ours(1) != Ours(2)
    assert Ours(1, c=[1]) == Ours(1, c=[2])
    assert Ours(1) != Theirs(1)
    assert Same(1) != Same(1)
    assert len({Same(1), Same(1)}) == 2


def test_a_default_made_by_a_factory_is_not_shared() -> None:
    assert Ours(1).c is not Ours(1).c


@pytest.mark.parametrize("cls", [Ours, Theirs], ids=["ours", "standard"])
def test_nothing_can_be_assigned_or_deleted(cls: type) -> None:
    value = cls(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        value.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.a
    assert value.a == 1


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, "b", [], 4), {}), ((1,), {"z": 1})], ids=str)
def test_wrong_arguments_are_a_type_error(args: tuple, kwargs: dict) -> None:
    for cls in (Ours, Theirs):
        with pytest.raises(TypeError):
            cls(*args, **kwargs)


def test_conditions_are_checked_on_making_and_replacing() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(Checked(1), a=-1)


def test_copies_and_pickles_are_equal() -> None:
    value = Ours(1, "x", [1])
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_class_that_changes_is_turned_away() -> None:
    with pytest.raises(TypeError, match=r"dataclass\(frozen=False\)"):
        dataclass(frozen=False)
