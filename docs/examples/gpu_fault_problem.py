"""Makes a kubectl gpu-fault scenario a problem for a benchmark harness: inject, recover, and two oracles.

The attributes and methods are those of SREGym's class Problem. Only the standard library is required."""

import json
import subprocess


def gpu_fault(*args, stdin="", passes_if=(0,)):
    """Runs `kubectl gpu-fault scenario ...` and returns its output."""
    command = ["kubectl", "gpu-fault", "scenario", *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode not in passes_if:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Oracle:
    """Evaluates one part of the grade."""

    def __init__(self, problem, part):
        self.problem, self.part = problem, part

    def evaluate(self, solution=None):
        """Returns {"success": bool, ...}. A solution is the diagnosis: component, object, field, mechanism."""
        if solution is not None:
            self.problem.submit(solution)
        return self.part(self.problem.grade())


def mitigation(report):
    return {"success": report["passed"], "score": report["score"], "reasons": report.get("reasons", [])}


def diagnosis(report):
    fields = {field["field"]: field["right"] for field in report.get("diagnosed", [])}
    return {"success": bool(fields) and all(fields.values()), "fields": fields}


class GPUFaultProblem:
    """One variant of a scenario. The agent must use this kubeconfig and no other.

    flags are additional flags of `scenario start`, such as --simulate-gpus=2."""

    def __init__(self, scenario, seed, kubeconfig, flags=()):
        self.scenario, self.seed, self.kubeconfig, self.flags = scenario, seed, kubeconfig, flags
        self.fault_injected, self.exercise, self.card, self.root_cause = False, None, None, None
        self.diagnosis_oracle = Oracle(self, diagnosis)
        self.mitigation_oracle = Oracle(self, mitigation)

    def inject_fault(self):
        started = json.loads(gpu_fault("start", self.scenario, "--seed", str(self.seed), "--kubeconfig-out",
                                       self.kubeconfig, "--yes", "-o", "json", *self.flags))
        self.exercise, self.card, self.fault_injected = started["id"], started["card"], True

    def submit(self, solution):
        gpu_fault("submit", self.exercise, "--diagnosis", "-", stdin=json.dumps(solution))

    def grade(self):
        return json.loads(gpu_fault("grade", self.exercise, "-o", "json", passes_if=(0, 2)))

    def recover_fault(self):
        self.root_cause = json.loads(gpu_fault("reveal", self.exercise, "--yes", "-o", "json"))
        gpu_fault("end", self.exercise, "--restore", "--yes")
        self.fault_injected = False
