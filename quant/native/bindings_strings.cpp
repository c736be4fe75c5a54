// String arrays of GGUF files: a vocabulary has 300,000 of them, and a loop in Python takes 0.3 s. What is wrong with
// an array the caller finds out by its own, slower loop: here it is only refused.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specdec {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Length of the string whose length field begins at `pos`, or nothing where it does not fit into `size` bytes.
std::optional<uint64_t> length_at(const uint8_t* data, uint64_t pos, uint64_t size) {
    if (pos > size || size - pos < 8) return {};
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= static_cast<uint64_t>(data[pos + i]) << (8 * i);
    if (length > size - pos - 8) return {};
    return length;
}

int64_t strings_end(const Bytes& data, uint64_t begin, uint64_t count) {
    uint64_t pos = begin;
    for (uint64_t i = 0; i < count; i++) {
        const auto length = length_at(data.data(), pos, data.size());
        if (!length) return -1;
        pos += 8 + *length;
    }
    return static_cast<int64_t>(pos);
}

nb::object decode_strings(const Bytes& data, uint64_t count) {
    if (count > data.size() / 8) return nb::none();
    nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
    if (!list.is_valid()) nb::raise_python_error();
    uint64_t pos = 0;
    for (uint64_t i = 0; i < count; i++) {
        const auto length = length_at(data.data(), pos, data.size());
        if (!length) return nb::none();
        const auto* text = reinterpret_cast<const char*>(data.data() + pos + 8);
        PyObject* string = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(*length), nullptr);
        if (string == nullptr) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) nb::raise_python_error();
            PyErr_Clear();
            return nb::none();
        }
        PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), string);
        pos += 8 + *length;
    }
    return list;
}

}  // namespace

void bind_strings(nb::module_& m) {
    m.def("strings_end", &strings_end, "data"_a, "begin"_a, "count"_a,
          "Where `count` strings (a 64-bit length, then bytes) that begin at `begin` end; -1 where they leave the data.");
    m.def("decode_strings", &decode_strings, "data"_a, "count"_a,
          "The first `count` strings as a list; None where one leaves the data or is not UTF-8.");
}

}  // namespace specdec
