// One line for a keyword that a call does not have, in place of the whole signature.
#pragma once

#include <nanobind/nanobind.h>

namespace cachalot::python {

namespace nb = nanobind;

// @param unknown    what no argument took
// @param call       its name, for the message
// @param signature  as Python's help shows it: the names that there are
// Raises TypeError if there is any: "Client: unexpected keyword 'modell' (did you mean 'model'?)".
void refuse_unknown(const nb::kwargs& unknown, const char* call, const char* signature);

}  // namespace cachalot::python
