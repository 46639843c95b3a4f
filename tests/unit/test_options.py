"""Options: defaults, validation, the environment, and the process configuration."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from braze.environment import parse_environment
from braze.errors import BrazeError, BrazeWarning, InvalidOption
from braze.options import SETTINGS, Config, Options, resolve


def values_of(variables: dict[str, str]) -> dict[str, Any]:
    """The options' values that environment variables give."""
    return parse_environment(variables, SETTINGS)


@pytest.fixture
def config() -> Config:
    return Config({})


def test_options_are_frozen_and_comparable() -> None:
    assert Options() == Options()
    assert hash(Options()) == hash(Options())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().numerics = "fast"  # type: ignore[misc]


def test_every_setting_says_what_it_does() -> None:
    assert all(setting.doc for setting in SETTINGS.values())
    variables = [s.environment for s in SETTINGS.values() if s.environment]
    assert len(variables) == len(set(variables))
    assert all(name.startswith("BRAZE_") for name in variables)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("recompil_limit", 3, "'recompile_limit'"),
        ("numerics", "eger", "'eager'"),
        ("mode", "max-autotun", "'max-autotune'"),
        ("verify", 1, "takes bool"),
        ("recompile_limit", True, "takes int"),
        ("recompile_limit", 0, "at least 1"),
        ("dynamic", "yes", "bool or None"),
    ],
)
def test_wrong_settings_are_named(config: Config, name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        setattr(config, name, value)
    assert name in str(caught.value) or repr(value) in str(caught.value)
    assert isinstance(caught.value, BrazeError)
    with pytest.raises(InvalidOption, match=message):
        resolve(Options(), options={name: value})


def test_an_unknown_name_lists_all_valid_ones(config: Config) -> None:
    with pytest.raises(InvalidOption) as caught:
        config.nothing_of_this_kind  # noqa: B018
    assert all(repr(name) in str(caught.value) for name in SETTINGS)
    assert not hasattr(config, "nothing_of_this_kind")


def test_environment_gives_first_values() -> None:
    values = values_of(
        {
            "BRAZE_VERIFY": "1",
            "BRAZE_DISABLE": "off",
            "BRAZE_CXX": "clang++",
            "BRAZE_CXXFLAGS": "-g -O2",
            "BRAZE_CACHE_DIR": "some/where",
            "BRAZE_BUILD_THREADS": "3",
            "UNRELATED": "x",
        }
    )
    options = Options(**values)
    assert options.verify and not options.disable
    assert options.compiler == "clang++"
    assert options.cpp_flags == ("-g", "-O2")
    assert options.cache_dir == Path("some/where")
    assert options.build_threads == 3


@pytest.mark.parametrize(
    ("variable", "text"),
    [("BRAZE_VERIFY", "maybe"), ("BRAZE_BUILD_THREADS", "two"), ("BRAZE_NUMERICS", "exact")],
)
def test_ill_formed_environment_is_warned_of(variable: str, text: str) -> None:
    with pytest.warns(BrazeWarning, match=f"{variable}='{text}' is ignored") as caught:
        values = values_of({variable: text, "BRAZE_CXX": "clang++"})
    assert values == {"compiler": "clang++"}
    valid = {"BRAZE_VERIFY": "0 or 1", "BRAZE_BUILD_THREADS": "whole number"}
    assert valid.get(variable, "'eager', 'fast'") in str(caught[0].message)


def test_cache_follows_the_desktop_standard() -> None:
    assert values_of({"XDG_CACHE_HOME": "/c"})["cache_dir"] == Path("/c/braze")
    both = {"XDG_CACHE_HOME": "/c", "BRAZE_CACHE_DIR": "d"}
    assert values_of(both)["cache_dir"] == Path("d")


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "BRAZE_CACHE_DIR"])
def test_no_variable_makes_the_current_folder_a_cache(variable: str) -> None:
    assert "cache_dir" not in values_of({variable: ""})
    for relative in (".", "c", "../c"):
        assert "cache_dir" not in values_of({"XDG_CACHE_HOME": relative})


def test_assignment_and_snapshot(config: Config) -> None:
    config.recompile_limit = 16
    config.cache_dir = "somewhere"
    config.cpp_flags = ["-g"]
    snapshot = config.snapshot()
    config.recompile_limit = 4
    assert snapshot.recompile_limit == 16
    assert snapshot.cache_dir == Path("somewhere")
    assert snapshot.cpp_flags == ("-g",)


def test_patch_as_context_manager(config: Config) -> None:
    with config.patch(numerics="eager", recompile_limit=2):
        assert (config.numerics, config.recompile_limit) == ("eager", 2)
        with config.patch("recompile_limit", 3):
            assert config.recompile_limit == 3
        with config.patch({"recompile_limit": 4}, verify=True):
            assert config.recompile_limit == 4 and config.verify
        assert config.recompile_limit == 2
    assert (config.numerics, config.recompile_limit) == ("default", 8)


def test_patch_can_be_entered_again_and_decorates(config: Config) -> None:
    patch = config.patch(recompile_limit=2)
    with patch, patch:
        assert config.recompile_limit == 2
    assert config.recompile_limit == 8

    @patch
    def limit(extra: int) -> int:
        """Doc."""
        return config.recompile_limit + extra

    assert (limit(1), limit.__doc__, config.recompile_limit) == (3, "Doc.", 8)


def test_patch_ends_on_exceptions_and_checks_at_once(config: Config) -> None:
    with pytest.raises(KeyError), config.patch(verify=True):
        raise KeyError
    assert not config.verify
    with pytest.raises(InvalidOption, match="verify"):
        config.patch(verifi=True)


def test_assignment_inside_a_patch_ends_with_it(config: Config) -> None:
    with config.patch(recompile_limit=2):
        config.recompile_limit = 5
        config.verify = True  # not patched: stays
        assert config.recompile_limit == 5
    assert config.recompile_limit == 8 and config.verify


def test_patches_of_two_threads_may_end_in_any_order(config: Config) -> None:
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with config.patch(recompile_limit=2):
            first_in.set()
            second_in.wait(60)
        first_out.set()

    def second() -> None:
        first_in.wait(60)
        with config.patch(recompile_limit=3):
            second_in.set()
            first_out.wait(60)
            assert config.recompile_limit == 3

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert config.recompile_limit == 8


def test_resolve_lays_arguments_over_the_configuration() -> None:
    base = Options(numerics="fast", recompile_limit=5)
    resolved = resolve(base, dynamic=True, options={"recompile_limit": 3, "mode": "default"})
    assert resolved == dataclasses.replace(base, dynamic=True, recompile_limit=3, mode="default")
    assert resolve(base) == base
    kept = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    assert resolve(base, fullgraph=True) == dataclasses.replace(base, fullgraph=True, **kept)
    one = resolve(base, options={"fullgraph": True, "capture_scalar_outputs": False})
    assert not one.capture_scalar_outputs and one.capture_dynamic_output_shape_ops
    assert resolve(base, options={}) == base


def test_mode_and_options_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match="Either mode or options"):
        resolve(Options(), mode="default", options={"verify": True})
    assert resolve(Options(), mode="reduce-overhead").mode == "reduce-overhead"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [(s.environment[:-1], s.environment) for s in SETTINGS.values() if s.environment]
    + [("BRAZE_TRACES", "BRAZE_TRACE"), ("BRAZE_LOG", "BRAZE_LOGS")],
)
def test_a_misspelt_variable_is_named_with_the_one_that_is_meant(variable: str, meant: str) -> None:
    with pytest.warns(BrazeWarning, match=f"did you mean {meant}[?]"):
        assert "numerics" not in values_of({variable: "1"})


def test_variables_of_others_are_not_looked_at() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values_of({"BRAZE_ROOT": "x", "BRAZE_DAY": "3", "BRAZIER": "1", "BRAZE_LOGS": "x"})


# --- names of torch.compile's configuration -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "option", "means"),
    [
        ("cache_size_limit", 3, "recompile_limit", 3),
        ("dynamic_shapes", False, "dynamic", False),
        ("automatic_dynamic_shapes", False, "dynamic", False),
        ("assume_static_by_default", False, "dynamic", True),
        ("force_disable_caches", True, "cache", False),
    ],
)
def test_settings_of_torch_compile_say_options(
    name: str, value: object, option: str, means: object, config: Config
) -> None:
    usual, before = getattr(config, option), getattr(config, name)
    with config.patch({name: value}):
        assert getattr(config, option) is means
        assert getattr(config, name) is value
    assert (getattr(config, option), getattr(config, name)) == (usual, before)
    assert getattr(resolve(config.snapshot(), options={name: value}), option) is means
    setattr(config, name, value)
    assert getattr(config, option) is means
    setattr(config, name, before)
    assert (getattr(config, option), getattr(config, name)) == (usual, before)


def test_settings_without_counterpart_are_warned_of(config: Config) -> None:
    for name, usual, other, words in [
        ("error_on_recompile", False, True, "set_stance"),
        ("fail_on_recompile_limit_hit", False, True, "fullgraph=True"),
        ("optimize_ddp", True, False, "DDP"),
        ("accumulated_cache_size_limit", 256, 64, "recompile_limit"),
        ("specialize_float", False, True, "symbols"),
        ("log_file_name", None, "log.txt", "BRAZE_LOGS_OUT"),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resolve(config.snapshot(), options={name: usual}) == config.snapshot()
            setattr(config, name, usual)
        for give in (
            lambda n=name, o=other: resolve(config.snapshot(), options={n: o}),
            lambda n=name, o=other: setattr(config, n, o),
            lambda n=name, o=other: config.patch({n: o}),
        ):
            with pytest.warns(BrazeWarning, match=f"{name}.*{words}"):
                give()
        assert getattr(config, name) == usual
    with pytest.raises(InvalidOption, match="takes bool"):
        setattr(config, "dynamic_shapes", "yes")  # noqa: B010
