"""What the nodes measured, compared with the stack and between nodes: results, a table, and a verdict in each row."""

from __future__ import absolute_import, division, print_function

from collections import Counter

SETUP = "run `trackside setup` (playbooks/setup.yml)"
CLOCK_SECONDS = 5.0  # certificates and the order of log lines bear that much
LEAST_SHM_BYTES = 256 << 20  # Gloo's and DeepSpeed's rings of a few ranks; NCCL wants more where GPUs are
LEAST_SHM_BYTES_GPU = 1 << 30

# What has to be equal on all nodes: (value, check, severity of a difference, fix).
EQUAL = (
    ("os", "operating system", "fail", "bring it to the release of the others: OpenMPI comes from the distribution"),
    ("architecture", "architecture", "fail", "use nodes of one architecture"),
    ("glibc", "glibc", "fail", "bring its distribution to the release of the others"),
    ("kernel", "kernel", "warn", "boot the kernel of the others"),
    ("python", "python", "fail", SETUP),
    ("openmpi", "openmpi", "fail", "remove what is first in PATH there, or install the version of the others"),
    ("driver", "driver", "warn", "install the driver of the others (gpu_driver_mode=install)"),
    ("mtu", "mtu", "fail", "set the interface's MTU to that of the others"),
)


def check_result(check, node, measured, expected, fix, *, ok, severity="fail"):
    """Return one result in the form that `check --json` promises."""
    return {
        "check": check,
        "node": node,
        "status": "ok" if ok else severity,
        "measured": str(measured),
        "expected": str(expected),
        "fix": "" if ok else fix,
    }


def usual(values, first):
    """Return the value that most nodes have; where as many have another, that of the node `first`."""
    counts = Counter(str(value) for value in values.values())
    most = max(counts.values())
    candidates = [value for value, count in counts.items() if count == most]
    return str(values[first]) if str(values[first]) in candidates else candidates[0]


def check_results(answers, head, mixed_gpus=False):
    """Return the results of comparing what each node ({name: answer of trackside_check}) measured.

    What the stack that setup has installed does not say is compared with what most nodes have.
    """
    measured = {name: answer["measured"] for name, answer in answers.items()}
    results = []
    for value, check, severity, fix in EQUAL:
        wanted = usual({name: found[value] for name, found in measured.items()}, head)
        for name, found in measured.items():
            if found[value] or wanted not in ("", "0"):
                same = str(found[value]) == wanted
                results.append(
                    check_result(check, name, found[value] or "none", wanted, fix, ok=same, severity=severity)
                )
    for name, found in measured.items():
        results += [*_of_the_stack(name, found, answers[head]["stack"]), *_of_the_node(name, found)]
    results += _environments(measured, head, {row["node"] for row in results if row["check"] in DEEPER and row["fix"]})
    results += _gpus(measured, head, mixed_gpus)
    return results + _mesh(answers[head]["mesh"], head)


# Where one of these fails, that the environment differs too is no news.
DEEPER = ("python", "torch", "torch's cuda", "nccl", "deepspeed", "ops")


def _of_the_stack(name, found, stack):
    versions, cuda = stack["versions"], stack.get("cuda") or {}
    wanted = [
        ("torch", found["torch"], versions["torch"]),
        ("deepspeed", found["deepspeed"], versions["deepspeed"]),
        ("torch's cuda", found["torch_cuda"], cuda.get("version", "")),
        ("nccl", found["nccl"], versions.get("nccl", "")),
    ]
    # A build for one CUDA adds a local label to the version that the index names (PEP 440).
    results = [
        check_result(check, name, have or "none", want, SETUP, ok=have == want or have.split("+")[0] == want)
        for check, have, want in wanted
        if want
    ]
    missing = [op for op in stack["ops"] if op not in found["ops"]]
    results.append(
        check_result(
            "ops",
            name,
            f"{', '.join(missing)} missing" if missing else ", ".join(found["ops"]),
            ", ".join(sorted(stack["ops"])),
            SETUP,
            ok=not missing,
        )
    )
    return results


def _of_the_node(name, found):
    least = LEAST_SHM_BYTES_GPU if found["gpus"] else LEAST_SHM_BYTES
    return [
        check_result(
            "shared memory",
            name,
            f"{found['shm'] >> 20} MiB in /dev/shm",
            f"at least {least >> 20} MiB",
            "mount it larger: `mount -o remount,size=50% /dev/shm`, and so in /etc/fstab",
            ok=found["shm"] >= least,
        )
    ]


def _environments(measured, head, explained):
    """Return whether each environment is the one of the others, and as it was installed."""
    results = []
    identities = {name: found["packages"] or found["environment"] for name, found in measured.items()}
    wanted = usual(identities, head)
    for name, found in measured.items():
        if name in explained:
            continue
        same = str(identities[name]) == wanted
        others = next((n for n in measured if str(identities[n]) == wanted), head)
        unlike = sorted(set(found["packages"]) ^ set(measured[others]["packages"]))[:3]
        words = found["changed"] or (f"differs in {', '.join(unlike)}" if unlike else found["environment"])
        results.append(
            check_result(
                "environment",
                name,
                words,
                f"as installed, {measured[others]['environment']}",
                SETUP + ": it makes the environment anew",
                ok=same and not found["changed"],
            )
        )
    return results


def _gpus(measured, head, mixed_gpus):
    wanted = usual({name: ", ".join(found["gpus"]) for name, found in measured.items()}, head)
    if not any(found["gpus"] for found in measured.values()):
        return []
    return [
        check_result(
            "gpus",
            name,
            ", ".join(found["gpus"]) or "none",
            wanted or "none",
            "look at `nvidia-smi` and `dmesg` there; where it is meant so, set trackside_mixed_gpus",
            ok=", ".join(found["gpus"]) == wanted,
            severity="warn" if mixed_gpus else "fail",
        )
        for name, found in measured.items()
    ]


def _mesh(mesh, head):
    """Return what the head found over ssh: that it gets there, with which limits, and the clocks."""
    results = [
        check_result("ssh from the head", name, said["words"] or "reached", "reached", SETUP, ok=not said["words"])
        for name, said in mesh.items()
    ]
    reached = {name: said for name, said in mesh.items() if not said["words"]}
    if not reached:
        return results
    first = head if head in reached else next(iter(reached))
    for limit, unit in (("memlock", "kB"), ("nofile", "files")):
        wanted = usual({name: said[limit] for name, said in reached.items()}, first)
        results += [
            check_result(
                f"limit {limit}",
                name,
                f"{said[limit]} {unit}",
                f"{wanted} {unit}, as on the others",
                f"{SETUP}; what else sets it is in /etc/security/limits.d and sshd's unit",
                ok=said[limit] == wanted,
            )
            for name, said in reached.items()
        ]
    middle = sorted(said["clock"] for said in reached.values())[len(reached) // 2]
    for name, said in reached.items():
        away = said["clock"] - middle
        right = abs(away) - said["clock_error"] <= CLOCK_SECONDS
        results.append(
            check_result(
                "clock",
                name,
                "right" if right else f"{away:+.1f} s from the others",
                "right",
                "let it follow an NTP server: `timedatectl set-ntp true`",
                ok=right,
            )
        )
    return results


def all_reduce_result(collected, cluster):
    """Return the result of the all-reduce; a sum that was not run because others failed is `skip`."""
    size = cluster["world_size"]
    expected = f"sum {size * (size + 1) / 2:.0f} on {size} ranks"
    result = collected.get("result") or {}
    if not collected:
        return {
            "check": "all-reduce",
            "node": "all",
            "status": "skip",
            "measured": "not run",
            "expected": expected,
            "fix": "mend what failed before it",
        }
    measured = f"sum {result['sum']:.0f} on {result['right_on']} ranks" if result else "no result"
    outcome = check_result("all-reduce", "all", measured, expected, "read the logs of its run", ok=measured == expected)
    if result:
        milliseconds = 1000 * result["seconds"]
        outcome["measured"] += f", {result['bytes'] / 1e6:.1f} MB in {milliseconds:.1f} ms"
    return outcome


def check_table(results):
    """Return the results as lines: what holds on all nodes in one line, what does not once for each node."""
    lines = []
    for check in dict.fromkeys(result["check"] for result in results):
        rows = [result for result in results if result["check"] == check]
        bad = [result for result in rows if result["status"] != "ok"]
        if not bad:
            values = dict.fromkeys(row["measured"] for row in rows)
            where = rows[0]["node"] if len(rows) == 1 else f"{len(rows)} nodes"
            lines.append(f"  ok    {check:<18} {where:<9} {', '.join(values)}")
        for row in bad:
            lines.append(
                f"  {row['status']:<5} {check:<18} {row['node']:<9} {row['measured']}, expected {row['expected']}"
            )
            lines.append(f"        fix: {row['fix']}")
    return "\n".join(lines)


class FilterModule:
    """The filters."""

    def filters(self):
        return {
            "trackside_all_reduce_result": all_reduce_result,
            "trackside_check_results": check_results,
            "trackside_check_table": check_table,
        }
