#!/usr/bin/env python3
"""Streams an answer through libnanoserve-client, with nothing but the standard library.

    stream.py PROMPT        $NANOSERVE_LIB: where the library is, if the linker does not know
"""
import ctypes as c
import os
import sys

lib = c.CDLL(os.environ.get("NANOSERVE_LIB", "libnanoserve-client.so.0"))


class Message(c.Structure):
    _fields_ = [("role", c.c_uint32), ("text", c.c_char_p), ("len", c.c_size_t)]


class Chunk(c.Structure):
    _fields_ = [("size", c.c_uint32), ("text", c.c_void_p), ("text_len", c.c_size_t),
                ("tokens", c.POINTER(c.c_int32)), ("n_token", c.c_size_t), ("lps", c.c_void_p),
                ("n_lp", c.c_size_t), ("n_prompt_lp", c.c_size_t)]


class Result(c.Structure):
    _fields_ = [(n, c.c_uint32) for n in ("size", "finish", "code", "n_prompt", "n_cached",
                                          "n_output", "n_preempt")]
    _fields_ += [(n, c.c_uint64) for n in ("seed", "queue_ns", "prefill_ns", "decode_ns",
                                           "first_ns", "total_ns")]
    _fields_ += [("text", c.c_char_p), ("stop", c.c_char_p)]


ERROR = 4  # NSV_CLIENT_FINISH_ERROR
lib.nsv_client_error.argtypes, lib.nsv_client_error.restype = [c.c_void_p], c.c_char_p
lib.nsv_client_open.argtypes = [c.c_char_p, c.c_void_p, c.c_char_p, c.c_size_t, c.c_void_p]
lib.nsv_client_submit_chat.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.c_void_p]
lib.nsv_request_next.argtypes = [c.c_void_p, c.c_int, c.c_void_p]
lib.nsv_request_result.argtypes = [c.c_void_p, c.c_void_p]
lib.nsv_client_close.argtypes = lib.nsv_request_free.argtypes = [c.c_void_p]


class Client:
    def __init__(self, path=None):
        self.handle, why = c.c_void_p(), c.create_string_buffer(256)
        if lib.nsv_client_open(path and os.fsencode(path), None, why, 256, c.byref(self.handle)):
            raise OSError(why.value.decode())

    def close(self):
        lib.nsv_client_close(self.handle)

    def check(self, ret):
        if ret < 0:
            raise OSError(lib.nsv_client_error(self.handle).decode())
        return ret

    def stream(self, prompt):
        """The answer, piece by piece; each is whole characters."""
        text, request = prompt.encode(), c.c_void_p()
        chunk, result = Chunk(size=c.sizeof(Chunk)), Result(size=c.sizeof(Result))
        question = Message(1, text, len(text))
        self.check(lib.nsv_client_submit_chat(self.handle, c.byref(question), 1, None,
                                              c.byref(request)))
        try:
            while self.check(lib.nsv_request_next(request, -1, c.byref(chunk))):
                yield c.string_at(chunk.text, chunk.text_len).decode()
            self.check(lib.nsv_request_result(request, c.byref(result)))
            if result.finish == ERROR:
                raise RuntimeError(result.text.decode())
        finally:
            lib.nsv_request_free(request)


if __name__ == "__main__":
    client = Client()
    for piece in client.stream(sys.argv[1]):
        print(piece, end="", flush=True)
    client.close()
