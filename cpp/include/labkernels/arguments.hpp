// What every door checks before a kernel runs, in one place and in the same words: type, byte order, rank, shape, contiguity,
// alignment, outputs that may be written, outputs that lie apart from inputs. Nothing is copied, and nothing here knows Python.
//
// Numbers are not looked at: a NaN goes in and comes out. Ids are looked at by the operators.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "labkernels/matrix.hpp"

namespace labkernels {

struct TypeError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};
struct ShapeError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// An array as a door hands it over. Plain data: it is also the struct of the C interface.
struct ArrayView {
    static constexpr int MAX_RANK = 6;
    void* data;
    const char* instead;  // nullptr, or the type of what came and is no array ("NoneType" where nothing came)
    int64_t shape[MAX_RANK], strides[MAX_RANK];  // strides in bytes
    int32_t ndim, itemsize;
    char kind;                       // numpy's letter: f, i, u, b, c ...
    unsigned char swapped, readonly;  // swapped: the bytes are in the order of another machine

    bool none() const { return instead && !std::strcmp(instead, "NoneType"); }
    int64_t size() const {
        int64_t n = 1;
        for (int i = 0; i < ndim && i < MAX_RANK; i++) n *= shape[i];
        return n;
    }
    int64_t nbytes() const { return instead ? 0 : size() * itemsize; }
};

// One axis of an expected shape: a number, or a name where any number will do.
struct Dim {
    const char* name;
    int64_t size;
    Dim(const char* name) : name(name), size(-1) {}
    Dim(int64_t size) : name(nullptr), size(size) {}
};
using Shape = std::initializer_list<Dim>;

// The arguments of one call of one operator, checked one after another. `leader` is the argument whose shape the others follow.
class Arguments {
   public:
    static constexpr int MAX_ARRAYS = 12;

    explicit Arguments(const char* op) : op_(op) {}
    Arguments(const char* op, const char* leader, const Matrix& m) : op_(op), leader_(leader), leader_shape_{m.rows, m.columns}, leader_rank_(2) {}

    template <class T>
    const T* in(const char* name, const ArrayView& a, Shape expected) {
        check(name, a, letter_of<T>(), (int)sizeof(T), expected);
        return static_cast<const T*>(a.data);
    }
    template <class T>
    T* out(const char* name, const ArrayView& a, Shape expected) {
        check(name, a, letter_of<T>(), (int)sizeof(T), expected);
        if (a.readonly) throw TypeError(says(name) + " is read-only; expected an array that may be written");
        seen_[count_ - 1].written = true;
        return static_cast<T*>(a.data);
    }

    // An output that may be an input of the same shape: element by element, what is read is read before it is written.
    template <class T>
    T* out_in_place(const char* name, const ArrayView& a, Shape expected) {
        T* data = out<T>(name, a, expected);
        seen_[count_ - 1].in_place = true;
        return data;
    }

    // Outputs lie apart from one another and from the inputs.
    void apart() const {
        for (const Seen *o = seen_; o < seen_ + count_; o++)
            for (const Seen *i = seen_; i < seen_ + count_; i++)
                if (o->written && i != o && overlap(*o->array, *i->array) && !(o->in_place && !i->written && same_place(*o->array, *i->array)))
                    throw std::invalid_argument(says(o->name) + " shares memory with " + i->name + "; expected arrays that lie apart" +
                                                (o->in_place ? ", or one and the same" : ""));
    }

    std::string says(const char* name) const { return std::string(op_) + ": " + name; }

    static std::string text(const int64_t* shape, int rank) {
        std::string out = "(";
        for (int i = 0; i < rank; i++) out += (i ? ", " : "") + std::to_string(shape[i]);
        return out + (rank == 1 ? ",)" : ")");
    }

   private:
    void check(const char* name, const ArrayView& a, char letter, int itemsize, Shape expected) {
        if (a.instead || a.kind != letter || a.itemsize != itemsize || a.swapped) wrong_type(name, a, type_name(letter, itemsize));
        bool same = a.ndim == (int)expected.size();
        int axis = 0;
        for (const Dim& dim : expected) {
            same = same && (dim.size < 0 || dim.size == a.shape[axis]);
            axis++;
        }
        if (!same) wrong_shape(name, a, expected);
        int64_t stride = itemsize;
        const bool empty = a.size() == 0;
        for (int i = a.ndim - 1; i >= 0; stride *= a.shape[i--])
            if (a.shape[i] != 1 && a.strides[i] != stride && !empty)
                throw TypeError(says(name) + " has shape " + text(a.shape, a.ndim) + " in strides of " + text(a.strides, a.ndim) +
                                " bytes; expected a C-contiguous array (order='C'; np.ascontiguousarray makes one)");
        if (!empty && reinterpret_cast<uintptr_t>(a.data) % (unsigned)itemsize)
            throw TypeError(says(name) + " starts at an address that is no multiple of " + std::to_string(itemsize) +
                            "; expected an aligned array (np.require(array, requirements='A') makes one)");
        if (!leader_) {
            leader_ = name;
            leader_rank_ = a.ndim;
            std::copy(a.shape, a.shape + a.ndim, leader_shape_);
        }
        seen_[count_++] = {name, &a, false, false};
    }

    // numpy's letter and name of a type
    template <class T>
    static constexpr char letter_of() { return std::is_floating_point<T>::value ? 'f' : std::is_signed<T>::value ? 'i' : 'u'; }
    static std::string type_name(char letter, int itemsize) {
        const std::string name = letter == 'f' ? "float" : letter == 'i' ? "int" : letter == 'u' ? "uint" : letter == 'c' ? "complex" : "";
        if (!name.empty()) return name + std::to_string(8 * itemsize);
        return letter == 'b' ? "bool" : std::string("of kind '") + letter + "'";
    }

    [[noreturn]] void wrong_type(const char* name, const ArrayView& a, const std::string& type) const {
        if (a.instead)
            throw TypeError(says(name) + " is of type " + a.instead + "; expected a numpy array of " + type + " (of a torch tensor: .cpu().numpy())");
        throw TypeError(says(name) + " is " + type_name(a.kind, a.itemsize) + (a.swapped ? " in the byte order of another machine" : "") +
                        "; expected " + type + " (array.astype(np." + type + "))");
    }

    [[noreturn]] void wrong_shape(const char* name, const ArrayView& a, Shape expected) const {
        std::string wanted = "(";
        for (const Dim& dim : expected) wanted += (wanted.size() > 1 ? ", " : "") + (dim.name ? dim.name : std::to_string(dim.size));
        throw ShapeError(says(name) + " has shape " + text(a.shape, std::min<int>(a.ndim, ArrayView::MAX_RANK)) + "; expected " + wanted +
                         (expected.size() == 1 ? ",)" : ")") + (leader_ ? std::string(" to match ") + leader_ + " " + text(leader_shape_, leader_rank_) : ""));
    }

    static bool overlap(const ArrayView& a, const ArrayView& b) {
        const auto *p = static_cast<const char*>(a.data), *q = static_cast<const char*>(b.data);
        return a.nbytes() && b.nbytes() && p < q + b.nbytes() && q < p + a.nbytes();
    }
    static bool same_place(const ArrayView& a, const ArrayView& b) {
        return a.data == b.data && a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
    }

    struct Seen {
        const char* name;
        const ArrayView* array;
        bool written, in_place;
    };
    const char* op_;
    const char* leader_ = nullptr;
    int64_t leader_shape_[ArrayView::MAX_RANK] = {};
    int leader_rank_ = 0, count_ = 0;
    Seen seen_[MAX_ARRAYS];
};

}  // namespace labkernels
