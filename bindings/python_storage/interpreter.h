// CPython in this process: started once, never ended (extension modules do not survive a second start, and a thread
// that hangs in Python could not be ended).
//
// @threads as each function says. "Holds Python" means: holds the interpreter's lock (GIL)
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <string>

#include "call.h"

namespace cachalot::python_storage {

// Starts it unless this process has one, for instance because it is a Python program. Any thread.
Outcome start_interpreter();

// A thread's place in the interpreter, which it keeps while it is outside. Made and destroyed by that thread, which
// does not hold Python.
class ThreadState {
 public:
  ThreadState() : gil_(PyGILState_Ensure()), state_(PyEval_SaveThread()) {}
  ~ThreadState() {
    PyEval_RestoreThread(state_);
    PyGILState_Release(gil_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  friend class WithPython;
  PyGILState_STATE gil_;
  PyThreadState* state_;
};

// Holds Python.
class WithPython {
 public:
  explicit WithPython(ThreadState& thread) : thread_(thread) {
    PyEval_RestoreThread(thread.state_);
  }
  ~WithPython() { thread_.state_ = PyEval_SaveThread(); }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;

 private:
  ThreadState& thread_;
};

// Does not hold Python, while the thread copies or waits.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  ~WithoutPython() { PyEval_RestoreThread(state_); }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  PyThreadState* state_;
};

struct DropReference {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
// A reference of its own. Null after a call that failed. Destroyed by a thread that holds Python.
using Ref = std::unique_ptr<PyObject, DropReference>;

// Adds folders, separated by ":", to the front of the module search path. Holds Python.
Outcome add_to_path(const std::string& folders);

// Takes the exception that is set. Holds Python.
// @param where  "Class.method()"
Outcome take_exception(const std::string& where);
// The same of an exception that is a value. Holds Python.
Outcome outcome_of(PyObject* exception, const std::string& where);

}  // namespace cachalot::python_storage
