// Lets other threads run Python while this one waits or copies.
//
// The interpreter may end meanwhile: a daemon thread is not waited for. Python then does not give such
// a thread the GIL any more: from 3.14 on it sleeps in there, before that pthread_exit() unwinds its
// stack, which would end the process in the first destructor it meets, this one, and may not go through
// objects of Python's, which nobody may touch without the GIL. So it is caught here and sleeps, too. To ask
// before whether the interpreter is ending would leave a moment in between.
//
// @threads  made by who holds the GIL, destroyed by the same
#pragma once

#include <Python.h>
#include <unistd.h>

namespace cachalot::python {

class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      for (;;) ::pause();  // to leave the handler without throwing on would end the process
    }
  }

 private:
  PyThreadState* const thread_;
};

}  // namespace cachalot::python
