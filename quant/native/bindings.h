#pragma once

#include <nanobind/nanobind.h>

namespace specdec {

void bind_kernels(nanobind::module_& m);
void bind_executor(nanobind::module_& m);
void bind_strings(nanobind::module_& m);

}  // namespace specdec
