"""The state file's layout, once: ctypes structures that Python writes and from which the C header is generated.

Fixed sizes, natural alignment, no pointers. `VERSION` changes with every change here.
"""

import ctypes
from ctypes import c_char, c_double, c_uint32, c_uint64
from typing import Any

MAGIC = b"FALLOWNV"
VERSION = 4

GPUS, PROFILES, STARTS, CI_PROFILES, INSTANCES, COMPUTE, PROCESSES = 16, 18, 16, 8, 16, 8, 64
EVENTS, FAULTS, SESSIONS = 64, 32, 256

FAIL, HANG, KILL_BEFORE, KILL_AFTER = 1, 2, 3, 4


class CiProfile(ctypes.Structure):
    _fields_ = [("id", c_uint32), ("index", c_uint32), ("slices", c_uint32), ("sm", c_uint32), ("limit", c_uint32)]


class Profile(ctypes.Structure):
    _fields_ = [
        ("name", c_char * 32),
        ("id", c_uint32),
        ("index", c_uint32),
        ("compute", c_uint32),
        ("limit", c_uint32),
        ("memory_mib", c_uint32),
        ("sm", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpeg", c_uint32),
        ("ofa", c_uint32),
        ("media", c_uint32),
        ("size", c_uint32),
        ("start_count", c_uint32),
        ("starts", c_uint32 * STARTS),
        ("ci_count", c_uint32),
        ("ci", CiProfile * CI_PROFILES),
    ]


class ComputeInstance(ctypes.Structure):
    _fields_ = [
        ("used", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("index", c_uint32),
        ("uuid", c_char * 48),
    ]


class GpuInstance(ctypes.Structure):
    _fields_ = [
        ("used", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("memory_used_mib", c_uint32),
        ("busy", c_uint32),
        ("compute", ComputeInstance * COMPUTE),
    ]


class Process(ctypes.Structure):
    _fields_ = [
        ("used", c_uint32),
        ("pid", c_uint32),
        ("gi", c_uint32),
        ("ci", c_uint32),
        ("memory_bytes", c_uint64),
    ]


class Gpu(ctypes.Structure):
    _fields_ = [
        ("uuid", c_char * 48),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("minor", c_uint32),
        ("bus", c_uint32),
        ("pci_device_id", c_uint32),
        ("architecture", c_uint32),
        ("cc_major", c_uint32),
        ("cc_minor", c_uint32),
        ("needs_reset", c_uint32),
        ("passthrough", c_uint32),
        ("mig", c_uint32),
        ("mig_pending", c_uint32),
        ("lost", c_uint32),
        ("axis", c_uint32),
        ("compute_total", c_uint32),
        ("sm_total", c_uint32),
        ("busy", c_uint32),
        ("memory_busy", c_uint32),
        ("persistence", c_uint32),
        ("power_mw", c_uint32),
        ("power_limit_mw", c_uint32),
        ("temperature", c_uint32),
        ("clock_mhz", c_uint32),
        ("memory_clock_mhz", c_uint32),
        ("nvlinks", c_uint32),
        ("recovery_action", c_uint32),
        ("compute_mode", c_uint32),
        ("remap_pending", c_uint32),
        ("remap_failed", c_uint32),
        ("ecc_uncorrected", c_uint32),
        ("limits_memory", c_uint32),
        ("clique", c_uint32),
        ("tensor_busy", c_uint32),
        ("cluster", c_uint64 * 2),
        ("memory_bytes", c_uint64),
        ("memory_used", c_uint64),
        ("energy_mj", c_uint64),
        ("energy_at", c_double),
        ("profile_count", c_uint32),
        ("profiles", Profile * PROFILES),
        ("instances", GpuInstance * INSTANCES),
        ("processes", Process * PROCESSES),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        ("sequence", c_uint64),
        ("type", c_uint64),
        ("data", c_uint64),
        ("gpu", c_uint32),
        ("gi", c_uint32),
        ("ci", c_uint32),
    ]


class Fault(ctypes.Structure):
    _fields_ = [
        ("call", c_char * 64),
        ("kind", c_uint32),
        ("code", c_uint32),
        ("times", c_uint32),
        ("seconds", c_double),
    ]


class Session(ctypes.Structure):
    _fields_ = [("born", c_uint64), ("pid", c_uint32), ("count", c_uint32)]


class State(ctypes.Structure):
    _fields_ = [
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("size", c_uint32),
        ("gpu_count", c_uint32),
        ("made", c_uint32),
        ("event_sequence", c_uint64),
        ("driver", c_char * 32),
        ("gpus", Gpu * GPUS),
        ("events", Event * EVENTS),
        ("faults", Fault * FAULTS),
        ("sessions", Session * SESSIONS),
    ]


STRUCTURES = (CiProfile, Profile, ComputeInstance, GpuInstance, Process, Gpu, Event, Fault, Session, State)
_NAMES = {c_char: "char", c_uint32: "uint32_t", c_uint64: "uint64_t", c_double: "double"}


def header() -> str:
    """The C header that states the same layout, with an assertion on each size."""
    limits = {
        "GPUS": GPUS,
        "INSTANCES": INSTANCES,
        "COMPUTE": COMPUTE,
        "PROCESSES": PROCESSES,
        "EVENTS": EVENTS,
        "FAULTS": FAULTS,
        "SESSIONS": SESSIONS,
        "STATE_VERSION": VERSION,
        "FAIL": FAIL,
        "HANG": HANG,
        "KILL_BEFORE": KILL_BEFORE,
        "KILL_AFTER": KILL_AFTER,
    }
    lines = ["/* Generated from nvml_double/layout.py; never edited. */", "#pragma once"]
    lines += ["#include <stddef.h>", "#include <stdint.h>", ""]
    lines += [f"#define {name} {value}u" for name, value in limits.items()]
    lines.append(f'#define STATE_MAGIC "{MAGIC.decode()}"')
    for structure in STRUCTURES:
        name, size = structure.__name__, ctypes.sizeof(structure)
        fields = "".join(f"    {_field(field[0], field[1])};\n" for field in structure._fields_)
        lines.append(f"\nstruct {name} {{\n{fields}}};")
        lines.append(f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");')
        for field in structure._fields_:
            at = getattr(structure, field[0]).offset
            lines.append(f'_Static_assert(offsetof(struct {name}, {field[0]}) == {at}, "{name}.{field[0]}");')
    return "\n".join(lines) + "\n"


def _field(name: str, kind: Any) -> str:
    if hasattr(kind, "_length_"):
        return f"{_type(kind._type_)} {name}[{kind._length_}]"
    return f"{_type(kind)} {name}"


def _type(kind: Any) -> str:
    return _NAMES.get(kind) or f"struct {kind.__name__}"
