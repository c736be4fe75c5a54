// Python module of the native engine. Bindings convert and check; they compute nothing.
#include "bindings.h"

#include <thread>

NB_MODULE(_native, m) {
    m.doc() = "Native kernels and executor of the quant package.";
    m.def(
        "hardware_threads", [] { return static_cast<int>(std::thread::hardware_concurrency()); },
        "Logical processors that the system reports.");
    specdec::bind_kernels(m);
    specdec::bind_executor(m);
    specdec::bind_strings(m);
}
