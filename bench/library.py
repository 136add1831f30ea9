"""What bench/peers.py needs of the library: cup_bench and its structs, as include/cupola/ has them."""
import ctypes

CODES = {"f32": 0, "f16": 2, "bf16": 3, "i8": 8, "f8e4m3": 9}  # of enum cup_dtype


class Ceiling(ctypes.Structure):
    _fields_ = [("copy_bytes", ctypes.c_double), ("flops", ctypes.c_double * 16)]


class Result(ctypes.Structure):
    _fields_ = [("op", ctypes.c_char_p), ("impl", ctypes.c_char_p), ("shapes", ctypes.c_char_p),
                ("dtype", ctypes.c_int), ("runs", ctypes.c_int), ("median_us", ctypes.c_double),
                ("low_us", ctypes.c_double), ("high_us", ctypes.c_double),
                ("bytes", ctypes.c_double), ("flops", ctypes.c_double),
                ("floor_us", ctypes.c_double), ("attributes", ctypes.c_char_p),
                ("error", ctypes.c_double), ("error_shapes", ctypes.c_char_p),
                ("chosen", ctypes.c_bool), ("copy_us", ctypes.c_double)]


class Sized(ctypes.Structure):
    """Options, which begin with their size; what is not named is 0, the default."""

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Options(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("dtype", ctypes.c_int), ("shapes", ctypes.c_char_p), ("impl", ctypes.c_char_p),
                ("seconds", ctypes.c_double), ("attributes", ctypes.c_char_p),
                ("indices", ctypes.c_int64), ("no_error", ctypes.c_bool),
                ("chosen", ctypes.c_bool), ("transposed", ctypes.c_bool),
                ("bare", ctypes.c_bool), ("channels_last", ctypes.c_bool)]


REPORT = ctypes.CFUNCTYPE(None, ctypes.POINTER(Result), ctypes.c_void_p)


class ContextOptions(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("seed", ctypes.c_uint64), ("threads", ctypes.c_int),
                ("memory_limit", ctypes.c_int64), ("deterministic", ctypes.c_bool),
                ("memory_share", ctypes.c_double)]


class Cupola:
    def __init__(self, path):
        self.lib = lib = ctypes.CDLL(path)
        lib.cup_context_new.restype = ctypes.c_void_p
        lib.cup_error_text.restype = ctypes.c_char_p
        for name in ("cup_error", "cup_error_text", "cup_error_clear"):
            getattr(lib, name).argtypes = [ctypes.c_void_p]
        lib.cup_ceiling_measure.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        lib.cup_precision.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        lib.cup_bench.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p,
                                  ctypes.c_void_p, REPORT, ctypes.c_void_p]
        self.c = lib.cup_context_new(ctypes.byref(ContextOptions(device=b"cuda")))
        self.ceiling = Ceiling()
        if lib.cup_error(self.c) or lib.cup_ceiling_measure(self.c, ctypes.byref(self.ceiling)):
            raise SystemExit(lib.cup_error_text(self.c).decode())

    def time(self, row, args, seconds, no_error):
        """What a call takes, then, with --all, the other implementations."""
        rows = []

        def take(result, _):
            r = result.contents
            rows.append({"impl": r.impl.decode(), "us": r.median_us, "floor": r.floor_us,
                         "spread": (r.high_us - r.low_us) / 2 / r.median_us, "error": r.error,
                         "bytes": r.bytes, "flops": r.flops, "chosen": r.chosen, "copy": r.copy_us,
                         "attributes": r.attributes.decode()})

        options = Options(dtype=CODES[row.dtype], shapes=row.shapes.encode(), seconds=seconds,
                          attributes=row.attributes.encode() if row.attributes else None,
                          indices=row.indices, no_error=no_error, chosen=not args.all,
                          transposed=row.transposed, channels_last=row.channels_last)
        if self.lib.cup_precision(self.c, row.precision.encode()) or \
                self.lib.cup_bench(self.c, row.op.encode(), ctypes.byref(self.ceiling),
                                   ctypes.byref(options), REPORT(take), None):
            text = self.lib.cup_error_text(self.c).decode()
            self.lib.cup_error_clear(self.c)
            print(f"{row.op} {row.shapes[:60]}: {text}", flush=True)
        return sorted(rows, key=lambda r: not r["chosen"])
