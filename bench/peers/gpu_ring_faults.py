"""Faults of ranks on several GPUs: the tests of make gpu-test, and processes that are killed or stopped.

gpu_ring.py writes the results of tests and processes to its JSON file.
"""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

PATIENCE = 14  # the deadline of ranks of which one is killed or stopped, in seconds
MARK = "FLASHKIT_RING_TEST"


def environment():
    """Return the environment of all programs: without NVLink multicast, and with PyTorch's NCCL."""
    env = dict(os.environ)
    for name, value in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NVSHMEM_DISABLE_NVLS", "1")):
        env.setdefault(name, value)
    if "FLASHKIT_NCCL" not in env:
        try:
            found = importlib.util.find_spec("nvidia.nccl")
        except ModuleNotFoundError:
            found = None
        for folder in found.submodule_search_locations if found else ():
            path = os.path.join(folder, "lib", "libnccl.so.2")
            if os.path.exists(path):
                env["FLASHKIT_NCCL"] = path
    return env


ENV = environment()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tests():
    """Run the tests with all ranks in one process, and return their results."""
    results = []
    for binary, run in (("./peer.test", "."), ("./nccl.test", "Problems|Faults|Abort"), ("./nccl.test", "Launched")):
        env = dict(ENV, **({"NCCL_COMM_ID": f"127.0.0.1:{free_port()}"} if run == "Launched" else {}))
        try:
            text = subprocess.run([binary, "-test.v", "-test.short", "-test.run", run], env=env, capture_output=True, text=True, timeout=60).stdout
        except subprocess.TimeoutExpired as e:
            text = (e.stdout or b"").decode()
            results.append({"name": binary, "result": "FAIL", "says": "did not end in 60 s"})
        for what, name, seconds in re.findall(r"--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", text):
            results.append({"name": f"{binary[2:]} {name}", "result": what, "seconds": float(seconds)})
        if not re.search(r"^PASS$", text, re.M):
            results.append({"name": binary, "result": "FAIL", "says": text[-2000:]})
    return results


def end(process):
    """End a program, and with it the processes of a launcher."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Ranks:
    """The processes of flashrun ring over NCCL, with one GPU each: started by torchrun or by this program."""

    def __init__(self, gpus, name, torchrun=False):
        self.name, self.gpus, self.torchrun, self.files = name, gpus, torchrun, []
        command = ["./flashrun", "ring", "--transport", "nccl", "--json", "--quiet", "--runs", "3", "--timeout", f"{4 * PATIENCE if torchrun else PATIENCE}s",
                   "--problem", ",".join(["b1-h32-g8-n16384-m16384-d128-bf16"] * 1000)]
        env = dict(ENV, NCCL_COMM_ID=f"127.0.0.1:{free_port()}", **{MARK: name})
        if torchrun:
            command = ["torchrun", "--nproc-per-node", str(gpus), "--master-port", str(free_port()), "--no-python"] + command
        self.begin = time.monotonic()
        self.started = [self.start(command, dict(env) if torchrun else dict(env, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(gpus), LOCAL_WORLD_SIZE=str(gpus)))
                        for r in range(1 if torchrun else gpus)]

    def start(self, command, env):
        out = tempfile.TemporaryFile("a+")  # the program appends, wherever this one reads
        self.files.append(out)
        return subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)

    def text(self, i):
        self.files[i].seek(0)
        return self.files[i].read()

    def process(self, rank):
        """Return the process ID of a rank."""
        if not self.torchrun:
            return self.started[rank].pid
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/environ", "rb") as environ:
                    if comm.read().strip() == "flashrun" and {f"{MARK}={self.name}".encode(), f"RANK={rank}".encode()} <= set(environ.read().split(b"\0")):
                        return int(pid)
            except OSError:
                continue
        return None

    def strike(self, number):
        """Send a signal to rank 1 in the middle of a pass, and return what the ranks then did."""
        result = {"name": self.name, "result": "FAIL"}
        try:
            while '"problem"' not in self.text(0):  # rank 0 has computed a problem
                if any(p.poll() is not None for p in self.started) or time.monotonic() - self.begin > 3 * PATIENCE:
                    return dict(result, says="no pass: " + " ".join(self.text(i)[-500:] for i in range(len(self.files))))
                time.sleep(0.05)
            time.sleep(0.1)
            pid, struck = self.process(1), time.monotonic()
            if pid is None:
                return dict(result, says="rank 1 was not found")
            os.kill(pid, number)
            others = [p for p in self.started if self.torchrun or p.pid != pid]
            statuses = []
            for p in others:
                try:
                    statuses.append(p.wait(timeout=max(1, self.begin + PATIENCE + 8 - time.monotonic())))
                except subprocess.TimeoutExpired:
                    statuses.append(None)
            result.update(seconds=round(time.monotonic() - struck, 2), statuses=statuses)
            if number == signal.SIGSTOP:  # once continued, the stopped rank ends too
                os.kill(pid, signal.SIGCONT)
                try:
                    result["stopped_rank_status"] = self.started[1].wait(timeout=10)
                except subprocess.TimeoutExpired:
                    statuses.append(None)
            names = r"rank\s*: 1 \(" if self.torchrun else r"waits for rank .*1"
            says = [self.text(i) for i in range(len(self.files)) if self.torchrun or i != 1]
            result["named"] = all(re.search(names, x) for x in says)
            result["says"] = [" ".join(y for y in x.splitlines() if "problem" not in y and re.search(r"rank|exitcode", y))[-400:] for x in says]
            if None not in statuses and 0 not in statuses and result["named"]:
                result["result"] = "PASS"
            return result
        finally:
            for p in self.started:
                if p.poll() is None:
                    end(p)


def processes(gpus):
    """Kill a rank, stop a rank, and kill a rank of torchrun, in three jobs at the same time."""
    jobs = [(Ranks(gpus, "a rank stopped"), signal.SIGSTOP), (Ranks(gpus, "a rank killed"), signal.SIGKILL)]
    if subprocess.run(["which", "torchrun"], capture_output=True).returncode == 0:
        jobs.append((Ranks(gpus, "a rank killed under torchrun", True), signal.SIGKILL))
    results = [None] * len(jobs)

    def strike(i):
        results[i] = jobs[i][0].strike(jobs[i][1])
    threads = [threading.Thread(target=strike, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results
