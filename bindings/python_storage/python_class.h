// The Python object that keeps the values, and the calls of its methods. What a class has to have:
// docs/extend/storage.md.
//
// Invariants
//   1. Python sees no memory of the caller: values that are put are copied first, values that are got are copied by
//      take(). So a class may keep what it is given, and may answer late.
//   2. No Python object outlives a function here, but for the object itself.
//
// All functions hold Python (interpreter.h); they release it while bytes are copied.
#pragma once

#include <cachalot/storage_plugin.h>

#include <span>
#include <string>
#include <vector>

#include "call.h"
#include "interpreter.h"
#include "options.h"

namespace cachalot::python_storage {

class PythonClass {
 public:
  using Keys = std::vector<cachalot_storage_key>;

  // Imports the module and makes an object of the class.
  // @errors CACHALOT_STORAGE_INVALID_ARGUMENT: no such module or class, a missing method, a refused option
  Outcome open(const Options& options);
  // Calls close(), if the class has it, and drops the object.
  Outcome close();

  // The pointers are the caller's.
  Outcome exists(Call& call, const Keys& keys, unsigned char* is_there, std::uint64_t deadline_ns);
  Outcome get(Call& call, const Keys& keys, std::span<cachalot_storage_get> gets,
              cachalot_storage_take take, std::uint64_t deadline_ns);
  Outcome put(Call& call, std::span<cachalot_storage_put> puts, std::uint64_t deadline_ns);
  Outcome remove(const Keys& keys, std::uint64_t deadline_ns);
  Outcome list(Call& call, cachalot_storage_each each, void* to, std::uint64_t deadline_ns);

 private:
  // "Class.get()"
  std::string where(const char* method) const { return name_ + "." + method + "()"; }
  Outcome fail(const char* method) const { return take_exception(where(method)); }
  // Null: the exception is set.
  Ref call_method(const char* method, Ref argument, std::uint64_t deadline_ns) const;

  std::string name_;
  PyObject* object_ = nullptr;  // a reference of its own
};

}  // namespace cachalot::python_storage
