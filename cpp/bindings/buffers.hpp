// Python objects as the checked layer wants them, for both modules: arrays through the buffer protocol, in place, never copied.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <type_traits>

#include "labkernels/checked.hpp"

namespace doors {

using labkernels::ArrayView;
using labkernels::PackedMatrix;

// numpy's letter of a format of the buffer protocol (the struct module's): 'f' for "<f", 'i' for "l" ...
inline char kind_of(const char* format) {
    switch (*format) {
        case 'e': case 'f': case 'd': case 'g': return 'f';
        case 'b': case 'h': case 'i': case 'l': case 'q': case 'n': return 'i';
        case 'B': case 'H': case 'I': case 'L': case 'Q': case 'N': return 'u';
        case '?': return 'b';
        case 'Z': return 'c';
        default: return *format;
    }
}

// An argument that is an array: its memory is held as long as this lives. What offers no buffer says so by `instead`.
class Buffer {
   public:
    explicit Buffer(PyObject* object) {
        array_.instead = Py_TYPE(object)->tp_name;
        if (!PyObject_CheckBuffer(object)) return;
        if (PyObject_GetBuffer(object, &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            return;
        }
        held_ = true;
        const char* format = buffer_.format ? buffer_.format : "B";
        const bool big = *format == '>' || *format == '!', little = *format == '<';
        array_.swapped = PY_BIG_ENDIAN ? little : big;
        array_.kind = kind_of(std::strchr("@=<>!^", *format) && *format ? format + 1 : format);
        array_.data = buffer_.buf;
        array_.instead = nullptr;
        array_.readonly = buffer_.readonly != 0;
        array_.ndim = buffer_.ndim;
        array_.itemsize = (int32_t)buffer_.itemsize;
        for (int i = 0; i < buffer_.ndim && i < ArrayView::MAX_RANK; i++) {
            array_.shape[i] = buffer_.shape[i];
            array_.strides[i] = buffer_.strides[i];
        }
    }
    ~Buffer() {
        if (held_) PyBuffer_Release(&buffer_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    operator const ArrayView&() const { return array_; }
    int64_t nbytes() const { return array_.nbytes(); }

   private:
    Py_buffer buffer_;
    ArrayView array_;
    bool held_ = false;
};

// Other Python threads run while a kernel does; where there is little to do, giving the lock away costs more than the work.
class Unlocked {
   public:
    explicit Unlocked(int64_t bytes) : state_(bytes > 65536 ? PyEval_SaveThread() : nullptr) {}
    ~Unlocked() {
        if (state_) PyEval_RestoreThread(state_);
    }
    Unlocked(const Unlocked&) = delete;

   private:
    PyThreadState* state_;
};

// How an argument of a checked operator comes from Python: arrays as handles, the rest as the module's own converters give it.
template <class Handle, class T>
struct Argument {
    using Python = T;
    T value;
    operator T() const { return value; }
    int64_t nbytes() const { return 0; }
};
template <class Handle>
struct Argument<Handle, const ArrayView&> : Buffer {
    using Python = Handle;
    explicit Argument(Handle handle) : Buffer(handle.ptr()) {}
};
template <class Handle>
struct Argument<Handle, const PackedMatrix&> {
    using Python = const PackedMatrix&;
    const PackedMatrix& value;
    operator const PackedMatrix&() const { return value; }
    int64_t nbytes() const { return value.nbytes(); }
};

template <class Function, class... Arguments>
auto call(Function function, const Arguments&... arguments) {
    Unlocked unlocked((arguments.nbytes() + ... + 0));
    return function(arguments...);
}

// A checked operator, to be bound as a method of Operators.
template <class Handle, class R, class... T>
auto method(R (*function)(labkernels::Operators&, T...)) {
    return [function](labkernels::Operators& operators, typename Argument<Handle, T>::Python... arguments) {
        return call([&](const auto&... checked) { return function(operators, checked...); }, Argument<Handle, T>{arguments}...);
    };
}

// A checked function that makes a matrix.
template <class Handle, class... T>
auto maker(PackedMatrix* (*function)(T...)) {
    return [function](typename Argument<Handle, T>::Python... arguments) { return call(function, Argument<Handle, T>{arguments}...); };
}

// Sets the Python error for an error of the checked layer: TypeError, or labcore's ShapeError, which is a ValueError.
inline bool set_error(const std::exception& error) {
    if (dynamic_cast<const labkernels::TypeError*>(&error)) {
        PyErr_SetString(PyExc_TypeError, error.what());
        return true;
    }
    if (!dynamic_cast<const labkernels::ShapeError*>(&error)) return false;
    PyObject* errors = PyImport_ImportModule("labcore.core.errors");
    PyObject* type = errors ? PyObject_GetAttrString(errors, "ShapeError") : nullptr;
    if (type) PyErr_SetString(type, error.what());
    Py_XDECREF(type);
    Py_XDECREF(errors);
    return true;
}

}  // namespace doors
