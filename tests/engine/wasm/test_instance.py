import ctypes
import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from hypothesis import given, settings
from hypothesis import strategies as st
from opapywasm import OpaWasmPolicy
from wasmtime import _ffi as ffi

from pdp.engine.wasm.direct import DirectInstance, fits
from pdp.engine.wasm.instance import PAGE, WasmInstance, WasmModule
from pdp.engine.wasm.pool import MAX_INSTANCES, InstancePool, fastest_instance_type
from pdp.errors import AnswerInvalidError, BundleError, EngineError, EngineTimeoutError, RequestRefusedError
from pdp.json import MAX_NUMBER, canonical
from tests.support import PATIENCE, until
from tests.support.probe_policy import DATA, PARTS, body, by_hand, compile_probes, decision, parsed

MEBIBYTE = 1024 * 1024
TICKS = 1000


@pytest.fixture(scope="module")
def wasm(opa: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_probes(opa, tmp_path_factory.mktemp("probes"))


@pytest.fixture(scope="module")
def module(wasm: bytes) -> WasmModule:
    return WasmModule(wasm)


@pytest.fixture(scope="module")
def reference(wasm: bytes) -> Iterator[Callable[[bytes], Any]]:
    """A function that returns the decision of opa-py-wasm, another runtime for policies in WebAssembly."""
    with OpaWasmPolicy.from_wasm_bytes(wasm) as policy:
        policy.set_data(canonical(DATA))
        yield lambda request: policy.evaluate(request, "authz/decision")


@pytest.fixture(scope="module", params=[DirectInstance, WasmInstance], ids=["direct", "public"])
def calls(request: pytest.FixtureRequest) -> type[WasmInstance]:
    """The class of instances. It calls wasmtime through wasmtime's C API or public Python API."""
    kind: type[WasmInstance] = request.param
    return kind


MakePool = Callable[..., InstancePool]


@pytest.fixture
def make_pool(wasm: bytes, calls: type[WasmInstance]) -> MakePool:
    def make(*, deadline: float = PATIENCE, instances: int = MAX_INSTANCES) -> InstancePool:
        return InstancePool(
            wasm,
            canonical(DATA),
            deadline=deadline,
            memory_limit=16 * MEBIBYTE,
            max_instances=instances,
            instance_type=calls,
        )

    return make


MakeInstance = Callable[..., WasmInstance]


@pytest.fixture(scope="module")
def make_instance(module: WasmModule, calls: type[WasmInstance]) -> MakeInstance:
    return lambda memory=16 * MEBIBYTE, of=module: calls(of, canonical(DATA), memory)


@pytest.fixture(scope="module")
def used(make_instance: MakeInstance) -> Iterator[WasmInstance]:
    instance = make_instance()
    yield instance
    instance.close()


def pool_by_hand(calls: type[WasmInstance], **parts: str) -> InstancePool:
    return InstancePool(by_hand(**parts), b"{}", deadline=PATIENCE, memory_limit=4 * MEBIBYTE, instance_type=calls)


@pytest.fixture
def pool(make_pool: MakePool) -> Iterator[InstancePool]:
    made = make_pool()
    yield made
    made.close()


def let_time_pass(pool: InstancePool, running: Sequence[Future[Any]]) -> None:
    """Advance the pool's clock until the given evaluations time out, regardless of their deadlines."""
    while not all(evaluation.done() for evaluation in running):
        pool._module.engine.increment_epoch()


def test_wasm_policy_with_much_static_data_can_be_instantiated(calls: type[WasmInstance]) -> None:
    # OPA declares a memory of two pages, but the constants of a large policy need more pages.
    far = PAGE * 5
    large = WasmModule(by_hand(large=f'(data (i32.const {PAGE}) "{"x" * (far - PAGE)}")'))

    assert calls(large, b"{}", MEBIBYTE).evaluate(0, b"{}", TICKS) == b'[{"result":1}]'


# Comparison with opa-py-wasm

numbers = st.integers(-MAX_NUMBER, MAX_NUMBER) | st.floats(-1e15, 1e15, allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


@pytest.mark.opa
@settings(max_examples=100)
@given(context=st.dictionaries(texts, values, max_size=6))
def test_answers_equal_those_of_opa_py_wasm(
    used: WasmInstance, reference: Callable[[bytes], Any], context: dict[str, Any]
) -> None:
    request = body("echo", seen=context)

    answer = used.evaluate(0, request, TICKS)

    assert parsed(answer) == reference(request)


@pytest.mark.opa
def test_builtins_with_caches_return_correct_answers_in_a_used_wasm_instance(
    make_instance: MakeInstance, reference: Callable[[bytes], Any]
) -> None:
    used = make_instance()
    for count in range(300):
        request = body("builtins", texts=["ab" * count, "aab", "x", str(count), f"{count}e9", "ä"])

        answer, expected = parsed(used.evaluate(0, request, TICKS)), reference(request)

        assert answer | {"upper": sorted(answer["upper"])} == expected | {"upper": sorted(expected["upper"])}


# Sizes of inputs, answers and memory

PAGES = (1, 2, 3, 4, 7, 16)
OFFSETS = range(-10, 11)


def sized(size: int) -> tuple[bytes, str]:
    text = "x" * (size - len(body("echo", text="")))
    return body("echo", text=text), text


@pytest.mark.opa
@pytest.mark.parametrize("pages", PAGES)
@pytest.mark.parametrize("aligned", ["length", "end"])
def test_inputs_that_end_near_page_boundaries_are_read_completely(
    make_instance: MakeInstance, pages: int, aligned: str
) -> None:
    used = make_instance(64 * MEBIBYTE)
    for offset in OFFSETS:
        start = used._heap % PAGE if aligned == "end" else 0
        request, text = sized(pages * PAGE - start + offset)

        fresh = make_instance(64 * MEBIBYTE)

        assert parsed(fresh.evaluate(0, request, TICKS)) == decision({"text": text})
        assert parsed(used.evaluate(0, request, TICKS)) == decision({"text": text})
        fresh.close()


@pytest.mark.opa
@pytest.mark.parametrize("count", [1, 62, 63, 64, 500])
def test_long_answers_are_read_completely(make_instance: MakeInstance, count: int) -> None:
    many = list(range(count))

    answer = parsed(make_instance(256 * MEBIBYTE).evaluate(0, body("large", many=many), TICKS))

    assert answer == [[x, y] for x in many for y in many]


@pytest.mark.opa
def test_memory_does_not_grow_in_ten_thousand_evaluations(make_pool: MakePool) -> None:
    pool = make_pool()
    request = body("echo", text="x" * 1000)
    for _ in range(200):
        pool.evaluate(0, request)
    (instance,) = pool._all
    size, used = instance._size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for _ in range(10_000):
        pool.evaluate(0, request)

    assert [each._size for each in pool._all] == [size]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 4096  # ru_maxrss is in KiB.
    pool.close()


@pytest.mark.opa
def test_failed_evaluations_release_memory(pool: InstancePool) -> None:
    def fail(times: int) -> int:
        for _ in range(times):
            with pytest.raises(AnswerInvalidError):
                pool.evaluate(0, body("conflict"))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert fail(100) + 16 * 1024 > fail(500)  # ru_maxrss is in KiB. An instance has 256 KiB.


# Policies that fail

FAILURES = [
    pytest.param("endless", 1, EngineTimeoutError, "the policy did not finish within its deadline", id="endless"),
    pytest.param("large", PATIENCE, AnswerInvalidError, "the policy used up its memory", id="allocates"),
    pytest.param("hungry", PATIENCE, AnswerInvalidError, None, id="allocates beyond 32 bits"),
    pytest.param(
        "conflict",
        PATIENCE,
        AnswerInvalidError,
        "the policy failed: authz/decision.rego:24:1: var assignment conflict",
        id="conflict",
    ),
]


@pytest.mark.opa
@pytest.mark.parametrize(("action", "deadline", "error", "message"), FAILURES)
def test_failed_evaluation_does_not_affect_next_decision(
    make_pool: MakePool, action: str, deadline: float, error: type[EngineError], message: str | None
) -> None:
    pool = make_pool(deadline=deadline)
    for _ in range(2):
        with pytest.raises(error) as caught:
            pool.evaluate(0, body(action, text="abc", many=list(range(3000))))

        assert type(caught.value) is error
        assert message is None or caught.value.message == message
        assert parsed(pool.evaluate(0, body("echo", text="x"))) == decision({"text": "x"})
    pool.close()


@pytest.mark.opa
@pytest.mark.parametrize("nested", [b'{"a":', b"["])
@pytest.mark.parametrize("levels", [1_000, 10_000, 100_000])
def test_deeply_nested_input_is_read_or_rejected(pool: InstancePool, nested: bytes, levels: int) -> None:
    deep = nested * levels + (b"1}" if nested != b"[" else b"]") + (b"}" if nested != b"[" else b"]") * (levels - 1)
    try:
        pool.evaluate(0, b'{"action":{"name":"echo"},"context":' + deep + b"}")
    except AnswerInvalidError as error:
        assert error.message == "the policy failed: wasm trap: call stack exhausted"  # noqa: PT017

    assert parsed(pool.evaluate(0, body("echo"))) == decision({})


@pytest.mark.opa
@pytest.mark.parametrize("text", [body("nothing"), b"", b"{", b"nope", b"\xff\xfe", b"NaN", b'{"a"', b"[1,"])
def test_wasm_result_set_is_empty_if_the_policy_or_the_input_has_no_value(pool: InstancePool, text: bytes) -> None:
    assert pool.evaluate(0, text) == b"[]"


@pytest.mark.opa
def test_too_large_input_is_rejected_and_instance_stays_usable(pool: InstancePool) -> None:
    (before,) = pool._all
    with pytest.raises(RequestRefusedError) as caught:
        pool.evaluate(0, body("echo", text="x" * (17 * MEBIBYTE)))

    assert (caught.value.code, caught.value.message) == (
        "decision.request_invalid",
        "the request has 17825840 bytes, more than fits into the engine's memory",
    )
    assert list(pool._all) == [before]
    assert parsed(pool.evaluate(0, body("echo"))) == decision({})


@pytest.mark.opa
def test_unknown_wasm_entrypoint_is_an_error(pool: InstancePool) -> None:
    with pytest.raises(AnswerInvalidError, match="the policy failed"):
        pool.evaluate(99, body("echo"))


@pytest.mark.opa
def test_data_that_is_not_json_is_rejected(wasm: bytes) -> None:
    with pytest.raises(BundleError) as caught:
        InstancePool(wasm, b"{nope", deadline=1, memory_limit=MEBIBYTE)

    assert caught.value.message == "the policy cannot read its data: not JSON"


# Threads and the clock of the pool


@pytest.mark.opa
@pytest.mark.parametrize("instances", [1, MAX_INSTANCES], ids=["taking turns", "at once"])
def test_each_thread_gets_the_answer_to_its_own_request(make_pool: MakePool, instances: int) -> None:
    pool = make_pool(instances=instances)

    def ask(name: int) -> list[Any]:
        return [parsed(pool.evaluate(0, body("echo", name=name, count=count))) for count in range(100)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))

    assert answers == [[decision({"name": name, "count": count}) for count in range(100)] for name in range(8)]
    assert len(pool._all) <= min(8, instances)
    pool.close()


@pytest.mark.opa
def test_closing_the_pool_rejects_waiting_callers_and_lets_the_running_evaluation_time_out(make_pool: MakePool) -> None:
    pool = make_pool(instances=1)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(pool.evaluate, 0, body("endless", text="abc"))
        assert until(lambda: pool.busy)
        waiting = threads.submit(pool.evaluate, 0, body("echo"))
        assert until(lambda: pool._waiting == 1)
        pool.close()

        with pytest.raises(EngineError, match="the engine is closed"):
            waiting.result(timeout=PATIENCE)
        assert not running.done()
        let_time_pass(pool, [running])
        with pytest.raises(EngineTimeoutError):
            running.result()


@pytest.mark.opa
def test_caller_that_waits_for_an_instance_times_out_and_the_pool_recovers(make_pool: MakePool) -> None:
    pool = make_pool(instances=4)

    def fail() -> str:
        with pytest.raises(EngineTimeoutError) as caught:
            pool.evaluate(0, body("endless", text="abc"))
        return caught.value.message

    with ThreadPoolExecutor(12) as threads:
        running = [threads.submit(fail) for _ in range(4)]
        assert until(lambda: len(pool._all) == 4 and not pool._free)
        # This deadline applies only to callers that wait for an instance. A running evaluation counts the ticks of the
        # clock.
        pool._deadline = 0.05
        waiting = [threads.submit(fail) for _ in range(8)]
        in_vain = [failure.result() for failure in waiting]
        assert (len(pool._all), any(evaluation.done() for evaluation in running)) == (4, False)
        let_time_pass(pool, running)

    assert in_vain == ["all instances of the policy were busy until the deadline"] * 8
    assert [failure.result() for failure in running] == ["the policy did not finish within its deadline"] * 4
    assert (len(pool._all), parsed(pool.evaluate(0, body("echo")))) == (0, decision({}))
    pool.close()


@pytest.mark.opa
def test_deadline_clock_that_paused_while_idle_resumes_for_the_next_evaluation(make_pool: MakePool) -> None:
    pool = make_pool(deadline=1)
    pool.evaluate(0, body("echo"))
    assert until(lambda: pool._clock.resting)

    with pytest.raises(EngineTimeoutError):
        pool.evaluate(0, body("endless", text="abc"))
    pool.close()


def clocks() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "pdp-clock"}


@pytest.mark.opa
@pytest.mark.parametrize("forgotten", [False, True], ids=["closed", "forgotten"])
def test_clock_and_instances_end_when_their_pool_is_closed_or_dropped(make_pool: MakePool, forgotten: bool) -> None:
    before = clocks()
    pool = make_pool()
    (instance,) = pool._all
    (clock,) = clocks() - before

    if forgotten:
        del pool
        gc.collect()
    else:
        pool.close()
        pool.close()
        with pytest.raises(EngineError) as caught:
            pool.evaluate(0, body("echo"))
        assert (caught.value.code, caught.value.message) == ("engine.unavailable", "the engine is closed")

    # While the clock thread checks whether an evaluation runs, the thread briefly refers to the pool.
    assert until(lambda: instance.closed)
    with pytest.raises(EngineError, match="the instance is closed"):
        instance.evaluate(0, body("echo"), TICKS)
    clock.join(PATIENCE)
    assert not clock.is_alive()


def run_script(script: str, *arguments: object) -> str:
    """Run a script in a separate Python process, so that a crash does not end the tests, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BEGIN = """
import os, random, signal, sys, threading
from pathlib import Path
from pdp.json import canonical
from pdp.engine.wasm.pool import InstancePool
from pdp.errors import EngineError
from tests.support.probe_policy import DATA, body

wasm = Path(sys.argv[1]).read_bytes()
pool = InstancePool(wasm, canonical(DATA), deadline=600, memory_limit=1 << 24)
"""
FORK = """
answer = pool.evaluate(0, body("echo"))
child = os.fork()
if not child:
    try:
        pool.evaluate(0, body("echo"))
    except EngineError as error:
        print(error.code, error.message)
        own = InstancePool(wasm, canonical(DATA), deadline=600, memory_limit=1 << 24)
        sys.exit(0 if own.evaluate(0, body("echo")) == answer else 1)
    sys.exit(2)
print(os.waitpid(child, 0)[1], pool.evaluate(0, body("echo")) == answer)
"""


SMALL_STACK = """
def work():
    try:
        pool.evaluate(0, b"[" * 50000)
    except Exception as error:
        print(error)

threading.stack_size(512 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


INTERRUPTS = """
class Interrupted(Exception): ...

armed = False
moments = random.Random(7)

def interrupt(*_):
    # One interrupt per round, so that slow machines also finish rounds, and rounds end even if Python drops the
    # exception, as it does while it finalizes objects.
    global armed
    if armed:
        armed = False
        raise Interrupted

expected = pool.evaluate(0, body("echo"))
signal.signal(signal.SIGALRM, interrupt)
broken_off = 0
while broken_off < 200:
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0001, 0.003))
        while armed:
            assert pool.evaluate(0, body("echo")) == expected
    except Interrupted:
        broken_off += 1
print(pool.evaluate(0, body("echo")) == expected, len(pool._all) <= 2)
"""


@pytest.mark.opa
@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (FORK, "engine.unavailable the engine was opened before the process was forked\n0 True\n"),
        (SMALL_STACK, "the policy failed: wasm trap: call stack exhausted\n"),
        (INTERRUPTS, "True True\n"),
    ],
    ids=["a forked child makes its own", "deep input and a small stack", "evaluations broken off anywhere"],
)
def test_pool_works_after_a_fork_a_stack_overflow_or_interrupts(
    wasm: bytes, tmp_path: Path, script: str, printed: str
) -> None:
    (tmp_path / "policy.wasm").write_bytes(wasm)

    assert run_script(BEGIN + script, tmp_path / "policy.wasm") == printed


# The C API and the public API of wasmtime


def test_installed_wasmtime_is_called_through_its_c_api() -> None:
    assert fastest_instance_type() is DirectInstance


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (wasmtime.Store, "_context", None),
        (wasmtime.Trap, "_from_ptr", None),
        (ffi.dll.wasmtime_func_call_unchecked, "argtypes", [ctypes.c_void_p] * 4),
        (ffi, "wasmtime_func_t", int),
    ],
    ids=["a name is missing", "another name", "another prototype", "another type"],
)
def test_unknown_wasmtime_is_called_through_public_api(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any
) -> None:
    if value is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, value)
    fits.cache_clear()
    try:
        assert fits() is False
    finally:
        fits.cache_clear()


# Modules that another compiler than OPA has compiled


HINT = "build the bundle again with `pdp bundle build`"
NOT_EXPORTED = "not a policy compiled by OPA: it does not export opa_eval"
UNLOADABLE = "policy and data cannot be loaded: "


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        pytest.param({"opa_eval": ""}, NOT_EXPORTED, id="export missing"),
        pytest.param({"opa_eval": '(func (export "opa_eval") (param i32) (result i32) (i32.const 1))'}, NOT_EXPORTED,
            id="fewer parameters"),
        pytest.param(
            {"opa_eval": '(func (export "opa_eval") (param i32 i32 i32 i32 i32 i32 i64) (result i32) (i32.const 1))'},
            NOT_EXPORTED,
            id="another type",
        ),
        pytest.param({"opa_eval": '(func (export "opa_eval") (param i32 i32 i32 i32 i32 i32 i32))'}, NOT_EXPORTED,
            id="no result"),
        pytest.param({"opa_eval": '(global (export "opa_eval") i32 (i32.const 1))'}, NOT_EXPORTED, id="no function"),
        pytest.param({"import": '(memory (export "memory") 1)'},
            "not a policy compiled by OPA: it does not import its memory", id="memory of its own"),
        pytest.param(
            {"import": '(import "env" "memory" (memory i64 1))', "answer": "", "no_0builtins": "", "names": ""},
            "the policy imports env.memory, which is not available",
            id="memory of 64 bits",
        ),
        pytest.param({"import": PARTS["import"] + '(import "wasi_snapshot_preview1" "fd_write" (func))'},
            "the policy imports wasi_snapshot_preview1.fd_write, which is not available", id="another host"),
        pytest.param({"import": PARTS["import"] + '(import "env" "opa_abort" (func (param i64)))'},
            "the policy imports env.opa_abort, which is not available", id="import of another type"),
        pytest.param({"major": '(global (export "opa_wasm_abi_version") i32 (i32.const 2))'},
            "the policy has OPA's ABI 2.3, expected 1.2", id="later ABI"),
        pytest.param({"minor": '(global (export "opa_wasm_abi_minor_version") i32 (i32.const 1))'},
            "the policy has OPA's ABI 1.1, expected 1.2", id="earlier ABI"),
        pytest.param({"major": ""}, "the policy has OPA's ABI None.3, expected 1.2", id="no ABI"),
        pytest.param({"no_0builtins": r'(data (i32.const 200) "{\22http.send\22:0,\22a\22:1}\00")'},
            "the policy calls builtins that its WebAssembly module does not contain: a, "
            "http.send", id="builtins outside"),
        pytest.param({"no_0builtins": r'(data (i32.const 200) "[]\00")'},
            UNLOADABLE + "the policy's builtins are not a map of names to numbers", id="builtins no object"),
        pytest.param({"names": r'(data (i32.const 300) "nope\00")'},
            UNLOADABLE + "the policy's entrypoints are not JSON", id="names no JSON"),
        pytest.param({"entrypoints": '(func (export "entrypoints") (result i32) (i32.const 70000))'},
            UNLOADABLE + "the policy's answer is not a string in its memory", id="names outside"),
        pytest.param({"opa_malloc": '(func (export "opa_malloc") (param i32) (result i32) (i32.const 196607))'},
            UNLOADABLE + "the policy put 2 bytes of data outside its memory", id="data outside"),
        pytest.param({"opa_malloc": '(func (export "opa_malloc") (param i32) (result i32) (i32.const -1))'},
            UNLOADABLE + "the policy put 2 bytes of data outside its memory", id="data far outside"),
        pytest.param({"opa_json_parse": '(func (export "opa_json_parse") (param i32 i32) (result i32) unreachable)'},
            UNLOADABLE + "the policy failed: wasm trap: wasm `unreachable` instruction executed", id="trap on data"),
        pytest.param({"answer": "(func $start unreachable) (start $start)"},
            UNLOADABLE + "wasm trap: wasm `unreachable` instruction executed", id="trap on start"),
    ],
)  # fmt: skip
def test_webassembly_modules_that_opa_did_not_compile_are_rejected(
    calls: type[WasmInstance], parts: dict[str, str], message: str
) -> None:
    with pytest.raises(BundleError) as caught:
        pool_by_hand(calls, **parts)

    assert caught.value.message == message


@pytest.mark.parametrize("content", [b"", b"nope", b"\0asm\x01\0\0\0garbage", by_hand()[:-20]])
def test_content_that_is_not_webassembly_is_rejected(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"^the policy is not WebAssembly: ") as caught:
        WasmModule(content)

    assert caught.value.hint == HINT


EVAL = '(func (export "opa_eval") (param i32 i32 i32 i32 i32 i32 i32) (result i32) {})'
NO_TEXT = "the policy's answer is not a string in its memory"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        pytest.param({"opa_eval": EVAL.format("(i32.store8 (i32.const 0) (i32.const 65)) (i32.const 0)")}, NO_TEXT,
            id="null"),
        pytest.param({"opa_eval": EVAL.format("(i32.const 196608)")}, NO_TEXT, id="just outside"),
        pytest.param({"opa_eval": EVAL.format("(i32.const -8)")}, NO_TEXT, id="far outside"),
        pytest.param({"opa_eval": EVAL.format("(i32.const 50000)")}, NO_TEXT, id="empty"),
        pytest.param(
            {
                "opa_eval": EVAL.format(
                    "(memory.fill (i32.const 190000) (i32.const 65) (i32.const 6608)) (i32.const 190000)"
                )
            },
            NO_TEXT,
            id="not ended",
        ),
        pytest.param({"opa_eval": EVAL.format("unreachable")},
            "the policy failed: wasm trap: wasm `unreachable` instruction executed", id="trap"),
        pytest.param(
            {
                "import": PARTS["import"] + '(import "env" "opa_abort" (func $abort (param i32)))',
                "opa_eval": EVAL.format("(call $abort (i32.const 100)) (i32.const 100)"),
            },
            'the policy failed: [{"result":1}]',
            id="abort",
        ),
        pytest.param(
            {
                "import": PARTS["import"] + '(import "env" "opa_abort" (func $abort (param i32)))',
                "opa_eval": EVAL.format("(call $abort (i32.const -1)) (i32.const 100)"),
            },
            "the policy failed: ",
            id="abort outside",
        ),
        pytest.param(
            {
                "import": PARTS["import"]
                + '(import "env" "opa_builtin1" (func $builtin (param i32 i32 i32) (result i32)))',
                "opa_eval": EVAL.format("(call $builtin (i32.const 1) (i32.const 1) (i32.const 1))"),
            },
            "the policy failed: wasm trap: wasm `unreachable` instruction executed",
            id="builtin all the same",
        ),
    ],
)  # fmt: skip
def test_answer_outside_memory_or_a_trap_is_an_error(
    calls: type[WasmInstance], parts: dict[str, str], message: str
) -> None:
    pool = pool_by_hand(calls, **parts)

    with pytest.raises(AnswerInvalidError) as caught:
        pool.evaluate(0, b"{}")

    assert caught.value.message == message
    assert list(pool._all) == []
    pool.close()


GROWN = (
    "(drop (memory.grow (i32.const 40))) (memory.copy (i32.const 2000000) (i32.const 100) (i32.const 20))"
    " (i32.const 2000000)"
)
PRINT = '(import "env" "opa_println" (func $print (param i32)))'


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"import": PARTS["import"] + PRINT, "opa_eval": EVAL.format("(call $print (i32.const -1)) (i32.const 100)")},
        {"opa_eval": EVAL.format(GROWN)},
    ],
    ids=["plain", "prints", "moves its answer into memory that it just grew"],
)
def test_policy_in_handwritten_webassembly_is_evaluated(calls: type[WasmInstance], parts: dict[str, str]) -> None:
    pool = pool_by_hand(calls, **parts)

    assert dict(pool.entrypoints) == {"authz/decision": 0}
    assert pool.evaluate(0, b"{}") == b'[{"result":1}]'
    pool.close()


def test_policy_that_does_not_grow_memory_is_an_error(calls: type[WasmInstance]) -> None:
    pool = pool_by_hand(calls)

    with pytest.raises(AnswerInvalidError) as caught:
        pool.evaluate(0, b"x" * 200_000)

    assert caught.value.message == "the policy did not grow its memory"
    pool.close()
