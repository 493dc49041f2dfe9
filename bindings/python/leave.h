// The end of a `with`, for clients and keepers.
#pragma once

#include <nanobind/nanobind.h>

#include "error.h"

namespace cachalot::python {

// Calls `end`. If the body raised an exception, that propagates; an error of `end` becomes a note of it.
template <class F>
void leave(const nb::args& exception, F&& end) {
  const bool has_raised = exception.size() > 1 && !exception[1].is_none();
  try {
    end();
  } catch (nb::python_error& error) {
    if (!has_raised || !error.matches(PyExc_Exception)) throw;
    const nb::object raised = exception[1];
    if (!nb::hasattr(raised, "add_note")) return;  // Python 3.10 and before
    raised.attr("add_note")(nb::str("then, at the end of the with: ") + nb::str(error.value()));
  }
}

}  // namespace cachalot::python
