import threading

from pdp.engine.opa.engine import Circuit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_circuit_opens_after_consecutive_failures() -> None:
    circuit = Circuit(failures=3, pause=1.0, clock=Clock())
    seen = []
    for outcome in (circuit.failed, circuit.failed, None, circuit.failed, circuit.failed, circuit.failed):
        if outcome is None:
            circuit.succeeded()
        else:
            outcome("down")
        seen.append(circuit.admits())

    assert seen == [True, True, True, True, True, False]
    assert circuit.reason == "down"


def test_open_circuit_permits_one_trial_request_after_each_pause() -> None:
    clock = Clock()
    circuit = Circuit(failures=1, pause=1.0, clock=clock)
    circuit.failed("down")
    seen = []
    for seconds in (0.0, 0.9, 0.2, 0.0, 0.9, 0.2):
        clock.now += seconds
        seen.append(circuit.admits())

    assert seen == [False, False, True, False, False, True]


def test_failed_trial_request_restarts_the_pause_of_the_circuit() -> None:
    clock = Clock()
    circuit = Circuit(failures=1, pause=1.0, clock=clock)
    circuit.failed("down")
    clock.now += 1.0
    assert circuit.admits()
    clock.now += 0.5
    circuit.failed("still down")
    clock.now += 0.9

    assert (circuit.admits(), circuit.reason) == (False, "still down")


def test_successful_trial_request_closes_the_circuit() -> None:
    clock = Clock()
    circuit = Circuit(failures=2, pause=1.0, clock=clock)
    circuit.failed("down")
    circuit.failed("down")
    clock.now += 1.0
    assert circuit.admits()
    circuit.succeeded()

    assert [circuit.admits(), circuit.admits()] == [True, True]
    circuit.failed("one failure is not yet enough again")
    assert circuit.admits()


def test_only_one_of_many_threads_may_send_the_trial_request_after_the_pause() -> None:
    clock = Clock()
    circuit = Circuit(failures=1, pause=1.0, clock=clock)
    circuit.failed("down")
    clock.now += 5.0
    admitted = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        admitted.append(circuit.admits())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(admitted) == [False] * 7 + [True]
