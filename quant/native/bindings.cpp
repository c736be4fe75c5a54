// Python bindings of the native engine: they convert and do nothing else.
#include <nanobind/nanobind.h>

#include <thread>

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Native kernels and executor of the quant package.";
    m.def("hardware_threads", [] { return static_cast<int>(std::thread::hardware_concurrency()); },
          "Logical processors that the system reports.");
}
