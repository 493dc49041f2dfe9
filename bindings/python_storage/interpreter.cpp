#include "interpreter.h"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace cachalot::python_storage {
namespace {

// Extension modules take the functions of Python from the global symbols, but a plug-in and what it is linked with
// are loaded with local ones.
bool make_symbols_global() {
  Dl_info own;
  return ::dladdr(reinterpret_cast<void*>(&Py_IsInitialized), &own) != 0 &&
         ::dlopen(own.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != nullptr;
}

std::string text_of(PyObject* object) {
  const Ref text(PyObject_Str(object));
  const char* const utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 == nullptr ? "" : utf8;
}

std::int32_t result_of_errno(PyObject* exception) {
  const Ref number(PyObject_GetAttrString(exception, "errno"));
  const long value = number && PyLong_Check(number.get()) ? PyLong_AsLong(number.get()) : 0;
  PyErr_Clear();
  return value == ENOSPC || value == EDQUOT ? CACHALOT_STORAGE_NO_SPACE : CACHALOT_STORAGE_IO;
}

std::int32_t result_of(PyObject* exception) {
  const auto is = [&](PyObject* type) { return PyErr_GivenExceptionMatches(exception, type) != 0; };
  if (is(PyExc_TimeoutError)) return CACHALOT_STORAGE_TIMEOUT;
  if (is(PyExc_PermissionError)) return CACHALOT_STORAGE_PERMISSION;
  if (is(PyExc_MemoryError)) return CACHALOT_STORAGE_NO_SPACE;
  return is(PyExc_OSError) ? result_of_errno(exception) : CACHALOT_STORAGE_IO;
}

}  // namespace

Outcome start_interpreter() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Py_IsInitialized() != 0) return {};
  if (!make_symbols_global())
    return {CACHALOT_STORAGE_IO, "the symbols of libpython cannot be made global"};
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;  // they are the program's
  config.parse_argv = 0;
  const PyStatus started = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(started) != 0) {
    const char* const why = started.err_msg == nullptr ? "" : started.err_msg;
    return {CACHALOT_STORAGE_IO, std::string("Python does not start: ") + why};
  }
  // What a class prints: stdout has lines that other programs read.
  PySys_SetObject("stdout", PySys_GetObject("stderr"));
  PyEval_SaveThread();
  return {};
}

Outcome add_to_path(const std::string& folders) {
  PyObject* const path = PySys_GetObject("path");  // borrowed
  if (path == nullptr || PyList_Check(path) == 0)
    return {CACHALOT_STORAGE_IO, "sys.path is no list"};
  Py_ssize_t at = 0;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const Ref folder(
        PyUnicode_DecodeFSDefaultAndSize(folders.data() + begin, Py_ssize_t(end - begin)));
    if (!folder) return take_exception("path");
    const int has = PySequence_Contains(path, folder.get());
    if (has < 0 || (has == 0 && PyList_Insert(path, at++, folder.get()) != 0))
      return take_exception("path");
    begin = end + 1;
  }
  return {};
}

Outcome outcome_of(PyObject* exception, const std::string& where) {
  const std::string text = text_of(exception);
  return {result_of(exception),
          where + ": " + Py_TYPE(exception)->tp_name + (text.empty() ? "" : ": " + text)};
}

Outcome take_exception(const std::string& where) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Ref own_type(type), own_value(value), own_trace(trace);
  if (!own_value) return {CACHALOT_STORAGE_IO, where + ": failed without an exception"};
  return outcome_of(value, where);
}

}  // namespace cachalot::python_storage
