#include "python_class.h"

#include <algorithm>
#include <cstring>

namespace cachalot::python_storage {
namespace {

constexpr const char* kMethods[] = {"exists", "get", "put", "remove", "list"};

Ref to_python(const cachalot_storage_key& key) {
  return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(key.bytes), sizeof key.bytes));
}

Ref to_python(const std::vector<cachalot_storage_key>& keys) {
  Ref all(PyList_New(static_cast<Py_ssize_t>(keys.size())));
  for (std::size_t i = 0; all && i < keys.size(); ++i) {
    Ref key = to_python(keys[i]);
    if (!key) return nullptr;
    PyList_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), key.release());
  }
  return all;
}

bool is_exception(PyObject* object) {
  return PyExceptionInstance_Check(object);
}

// The bytes of an object with the buffer protocol, as long as this lives.
class Buffer {
 public:
  explicit Buffer(PyObject* object)
      : is_held_(PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) == 0) {}
  ~Buffer() {
    if (is_held_) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  explicit operator bool() const { return is_held_; }
  const void* data() const { return view_.buf; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(view_.len); }

 private:
  Py_buffer view_;
  const bool is_held_;
};

// Hands an answer of get() to take(): a buffer, or a list or tuple of buffers. `get` is the caller's.
// @return false: an exception is set
bool hand_over(Call& call, cachalot_storage_take take, const cachalot_storage_get& get,
               PyObject* value) {
  if (PyList_Check(value) != 0 || PyTuple_Check(value) != 0) {
    const Ref pieces(PySequence_Tuple(value));  // of its own: the list may change meanwhile
    for (Py_ssize_t i = 0; pieces && i < PyTuple_GET_SIZE(pieces.get()); ++i) {
      if (!hand_over(call, take, get, PyTuple_GET_ITEM(pieces.get(), i))) return false;
    }
    return pieces != nullptr;
  }
  const Buffer buffer(value);
  if (!buffer) return false;
  const WithoutPython released;
  call.while_called([&] { take(get.to, buffer.data(), buffer.bytes()); });
  return true;
}

// What an iterable of one answer for each item says. Ends at the first error of the iterable itself.
class Answers {
 public:
  Answers(const Ref& iterable, std::size_t count, std::string where)
      : count_(count), where_(std::move(where)), answers_(PyObject_GetIter(iterable.get())) {}

  // Calls each(i, answer) for all of them. It returns false with an exception set.
  template <class Each>
  Outcome visit(const Each& each) {
    if (!answers_) return take_exception(where_);
    std::size_t i = 0;
    for (; Ref answer{PyIter_Next(answers_.get())}; ++i) {
      if (i == count_) return wrong("more than " + std::to_string(count_));
      if (!each(i, answer.get())) return take_exception(where_);
    }
    if (PyErr_Occurred() != nullptr) return take_exception(where_);
    return i == count_ ? Outcome{} : wrong(std::to_string(i));
  }

 private:
  Outcome wrong(const std::string& answers) const {
    return {CACHALOT_STORAGE_IO,
            where_ + ": " + answers + " answers, expected " + std::to_string(count_)};
  }
  const std::size_t count_;
  const std::string where_;
  const Ref answers_;
};

// What several items said, in one message: the last one's text.
struct Last {
  std::string why;
  std::int32_t keep(Outcome outcome) {
    if (outcome.result != CACHALOT_STORAGE_OK) why = std::move(outcome.why);
    return outcome.result;
  }
};

Ref copy_of(Call& call, const cachalot_storage_put& put, std::uint64_t bytes) {
  Ref copy(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!copy) return nullptr;
  char* to = PyBytes_AS_STRING(copy.get());
  const WithoutPython released;
  call.while_called([&] {
    for (const cachalot_storage_piece& piece : std::span(put.pieces, put.piece_count)) {
      std::memcpy(to, piece.data, piece.bytes);
      to += piece.bytes;
    }
  });
  return copy;
}

}  // namespace

Outcome PythonClass::open(const Options& options) {
  const auto refuse = [](Outcome outcome) {
    // Of the text that was given, as long as no file or server was asked.
    if (outcome.result == CACHALOT_STORAGE_IO) outcome.result = CACHALOT_STORAGE_INVALID_ARGUMENT;
    return outcome;
  };
  if (!options.path.empty()) {
    const Outcome added = add_to_path(options.path);
    if (added.result != CACHALOT_STORAGE_OK) return added;
  }
  const Ref module(PyImport_ImportModule(options.module.c_str()));
  if (!module) return refuse(take_exception("module " + options.module));
  const Ref made_by(PyObject_GetAttrString(module.get(), options.class_name.c_str()));
  if (!made_by) return refuse(take_exception("module " + options.module));
  name_ = options.class_name;
  for (const char* const method : kMethods) {
    const Ref found(PyObject_GetAttrString(made_by.get(), method));
    if (!found || PyCallable_Check(found.get()) == 0) {
      PyErr_Clear();
      return {CACHALOT_STORAGE_INVALID_ARGUMENT,
              options.module + "." + name_ + " has no method " + method + "()"};
    }
  }
  const Ref nothing(PyTuple_New(0)), keywords(PyDict_New());
  for (const auto& [name, value] : options.rest) {
    const Ref text(PyUnicode_DecodeFSDefaultAndSize(value.data(), Py_ssize_t(value.size())));
    if (!keywords || !text || PyDict_SetItemString(keywords.get(), name.c_str(), text.get()) != 0)
      return take_exception(name_ + "()");
  }
  if (nothing && keywords) object_ = PyObject_Call(made_by.get(), nothing.get(), keywords.get());
  if (object_ != nullptr) return {};
  const bool is_wrong_option =
      PyErr_ExceptionMatches(PyExc_TypeError) != 0 || PyErr_ExceptionMatches(PyExc_ValueError) != 0;
  Outcome failed = take_exception(name_ + "()");
  return is_wrong_option ? refuse(std::move(failed)) : failed;
}

Outcome PythonClass::close() {
  const Ref object(std::exchange(object_, nullptr));
  if (!object || PyObject_HasAttrString(object.get(), "close") == 0) return {};
  const Ref closed(PyObject_CallMethod(object.get(), "close", nullptr));
  return closed ? Outcome{} : fail("close");
}

Ref PythonClass::call_method(const char* method, Ref argument, std::uint64_t deadline_ns) const {
  const Ref name(PyUnicode_FromString(method)), deadline(PyLong_FromUnsignedLongLong(deadline_ns));
  if (!name || !deadline || (argument == nullptr && PyErr_Occurred() != nullptr)) return nullptr;
  // list() has none.
  PyObject* const last = argument ? deadline.get() : nullptr;
  return Ref(PyObject_CallMethodObjArgs(object_, name.get(),
                                        argument ? argument.get() : deadline.get(), last, nullptr));
}

Outcome PythonClass::exists(Call& call, const Keys& keys, unsigned char* is_there,
                            std::uint64_t deadline_ns) {
  const Ref result = call_method("exists", to_python(keys), deadline_ns);
  if (!result) return fail("exists");
  std::vector<unsigned char> there(keys.size());
  Outcome outcome =
      Answers(result, keys.size(), where("exists")).visit([&](std::size_t i, PyObject* answer) {
        const int truth = PyObject_IsTrue(answer);
        there[i] = truth > 0;
        return truth >= 0;
      });
  call.while_called([&] { std::copy(there.begin(), there.end(), is_there); });
  return outcome;
}

Outcome PythonClass::get(Call& call, const Keys& keys, std::span<cachalot_storage_get> gets,
                         cachalot_storage_take take, std::uint64_t deadline_ns) {
  const Ref result = call_method("get", to_python(keys), deadline_ns);
  if (!result) return fail("get");
  Last last;
  Outcome outcome =
      Answers(result, keys.size(), where("get")).visit([&](std::size_t i, PyObject* answer) {
        std::int32_t found = CACHALOT_STORAGE_OK;
        if (answer == Py_None) {
          found = last.keep({CACHALOT_STORAGE_NOT_FOUND, "no such value"});
        } else if (is_exception(answer)) {
          found = last.keep(outcome_of(answer, where("get")));
        } else if (!hand_over(call, take, gets[i], answer)) {
          found = last.keep(fail("get"));
        }
        call.while_called([&] { gets[i].result = found; });
        return true;
      });
  if (outcome.result == CACHALOT_STORAGE_OK) outcome.why = std::move(last.why);
  return outcome;
}

Outcome PythonClass::put(Call& call, std::span<cachalot_storage_put> puts,
                         std::uint64_t deadline_ns) {
  Ref values(PyList_New(static_cast<Py_ssize_t>(puts.size())));
  for (std::size_t i = 0; values && i < puts.size(); ++i) {
    std::uint64_t bytes = 0;
    cachalot_storage_key name;
    if (!call.while_called([&] { bytes = puts[i].value_bytes, name = puts[i].key; })) return {};
    const Ref copy = copy_of(call, puts[i], bytes);
    const Ref view(copy ? PyMemoryView_FromObject(copy.get()) : nullptr);
    const Ref key = view ? to_python(name) : nullptr;
    Ref pair(key ? PyTuple_Pack(2, key.get(), view.get()) : nullptr);
    if (!pair) return fail("put");
    PyList_SET_ITEM(values.get(), static_cast<Py_ssize_t>(i), pair.release());
  }
  if (call.is_abandoned()) return {};  // then the copies may lack bytes
  const std::size_t count = puts.size();
  const Ref result = call_method("put", std::move(values), deadline_ns);
  if (!result) return fail("put");
  if (result.get() == Py_None) return {};
  Last last;
  Outcome outcome =
      Answers(result, count, where("put")).visit([&](std::size_t i, PyObject* answer) {
        if (answer != Py_None && !is_exception(answer)) {
          PyErr_Format(PyExc_TypeError, "answered %R, expected None or an exception", answer);
          return false;
        }
        const std::int32_t stored =
            answer == Py_None ? CACHALOT_STORAGE_OK : last.keep(outcome_of(answer, where("put")));
        call.while_called([&] { puts[i].result = stored; });
        return true;
      });
  if (outcome.result == CACHALOT_STORAGE_OK) outcome.why = std::move(last.why);
  return outcome;
}

Outcome PythonClass::remove(const Keys& keys, std::uint64_t deadline_ns) {
  return call_method("remove", to_python(keys), deadline_ns) ? Outcome{} : fail("remove");
}

Outcome PythonClass::list(Call& call, cachalot_storage_each each, void* to,
                          std::uint64_t deadline_ns) {
  const Ref result = call_method("list", nullptr, deadline_ns);
  if (!result) return fail("list");
  const Ref heads(PyObject_GetIter(result.get()));
  if (!heads) return fail("list");
  for (bool goes_on = true; goes_on;) {
    const Ref one(PyIter_Next(heads.get()));
    if (!one) return PyErr_Occurred() != nullptr ? fail("list") : Outcome{};
    const Buffer head(one.get());
    if (!head) return fail("list");
    if (head.bytes() < CACHALOT_STORAGE_HEAD_BYTES) continue;  // cut off
    const WithoutPython released;
    goes_on = false;
    call.while_called([&] { goes_on = each(to, head.data()) != 0; });
  }
  return {};
}

}  // namespace cachalot::python_storage
