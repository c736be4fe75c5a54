#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bindings.h"
#include "executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specdec {
namespace {

template <class T> using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutVector = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using OutIds = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;
using OutMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// A pass that `request_cancel` stopped. A signal raises what its handler raised instead.
struct Cancelled : std::runtime_error {
    using std::runtime_error::runtime_error;
};

bool check_signals(void*) {
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

// Like check_signals; besides, asks a Python callable (a PyObject*) whether the pass is still wanted.
bool check_wanted(void* condition) {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) return true;
    PyObject* answer = PyObject_CallNoArgs(static_cast<PyObject*>(condition));
    if (answer == nullptr) return true;
    const int stop = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return stop != 0;  // -1: an error, raised once the pass has ended
}

[[noreturn]] void raise_cancelled() {
    if (PyErr_Occurred()) throw nb::python_error();
    throw Cancelled("the computation was cancelled");
}

Domain domain_of(bool outputs) { return outputs ? Domain::outputs : Domain::rows; }

KvType parse_kv_type(const std::string& name) {
    if (name == "f32") return KvType::f32;
    if (name == "f16") return KvType::f16;
    if (name == "q8_0") return KvType::q8_0;
    throw std::invalid_argument("unknown KV type '" + name + "' (known: f32, f16, q8_0)");
}

GateActivation parse_activation(const std::string& name) {
    if (name == "silu") return GateActivation::silu;
    if (name == "gelu_tanh") return GateActivation::gelu_tanh;
    throw std::invalid_argument("unknown activation '" + name + "'");
}

Isa isa_or_active(const std::string& name) { return name.empty() ? active_isa() : parse_isa(name); }

RowOp::Kind parse_kind(const std::string& name) {
    static constexpr const char* kNames[] = {"embed", "rms_norm", "add", "scale", "softcap", "gated", "gather", "quantize"};
    for (size_t i = 0; i < std::size(kNames); ++i)
        if (name == kNames[i]) return static_cast<RowOp::Kind>(i);
    throw std::invalid_argument("unknown row op '" + name + "'");
}

template <class T> std::vector<T> copied(const Vector<T>& v) { return {v.data(), v.data() + v.shape(0)}; }

template <class T> nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T> values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {owned->data(), {owned->size()}, owner};
}

OutMatrix to_matrix(std::vector<float> values, size_t rows, size_t columns) {
    auto* owned = new std::vector<float>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    return {owned->data(), {rows, columns}, owner};
}

// Holds a program until an executor takes it.
struct ProgramHandle {
    std::unique_ptr<Program> program = std::make_unique<Program>();
    Program& get() {
        if (!program) throw std::invalid_argument("the program belongs to an executor already");
        return *program;
    }
};

// An executor that one caller uses at a time. Waiting releases the GIL; a signal handler that comes back in gets an error.
class GuardedExecutor {
 public:
    GuardedExecutor(ProgramHandle& handle, const std::string& k_type, const std::string& v_type, int64_t n_ctx,
                    int threads, const std::string& isa) {
        handle.get();
        const KvTypes types{parse_kv_type(k_type), parse_kv_type(v_type)};
        const Isa chosen = isa_or_active(isa);
        impl_.emplace(std::move(handle.program), types, n_ctx, threads, chosen);
    }

    template <class F> auto with(F f) {
        if (owner_.load() == std::this_thread::get_id()) throw std::runtime_error("the model is in use by this thread");
        std::unique_lock lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock()) {
            nb::gil_scoped_release release;
            lock.lock();
        }
        struct Owner {
            std::atomic<std::thread::id>& id;
            ~Owner() { id.store({}); }
        } owner{owner_};
        owner_.store(std::this_thread::get_id());
        return f(*impl_);
    }

 private:
    std::mutex mutex_;
    std::atomic<std::thread::id> owner_;
    std::optional<Executor> impl_;
};

void executor_pack(GuardedExecutor& self, int index, const Vector<uint8_t>& data) {
    const bool done = self.with([&](Executor& e) {
        nb::gil_scoped_release release;
        return e.pack(index, data.data(), data.shape(0), check_signals, nullptr);
    });
    if (!done) raise_cancelled();
}

void executor_pack_rows(GuardedExecutor& self, int index, int64_t first_row, const Vector<uint8_t>& data) {
    self.with([&](Executor& e) { e.pack_rows(index, first_row, data.data(), data.shape(0)); });
}

void executor_forward(GuardedExecutor& self, const Vector<int32_t>& tokens, const Vector<int32_t>& positions,
             const Vector<int32_t>& sequences, const Vector<int32_t>& parents, const Vector<int32_t>& outputs,
             const MutableMatrix& logits, nb::handle stop) {
    const size_t n = tokens.shape(0);
    if (positions.shape(0) != n || sequences.shape(0) != n || parents.shape(0) != n)
        throw std::invalid_argument("a forward pass needs as many positions, sequences and parents as tokens");
    const bool done = self.with([&](Executor& e) {
        if (logits.shape(0) != outputs.shape(0) || static_cast<int64_t>(logits.shape(1)) != e.n_vocab())
            throw std::invalid_argument("the logits array has the wrong shape");
        const ForwardRows rows{tokens.data(), positions.data(), sequences.data(), parents.data(),
                               static_cast<int64_t>(n), outputs.data(), static_cast<int64_t>(outputs.shape(0))};
        nb::gil_scoped_release release;
        return stop.is_none() ? e.forward(rows, logits.data(), check_signals, nullptr)
                              : e.forward(rows, logits.data(), check_wanted, stop.ptr());
    });
    if (!done) raise_cancelled();
}

std::pair<OutIds, OutVector> top_k(const Vector<float>& logits, int64_t k) {
    const auto n = static_cast<int64_t>(logits.shape(0));
    if (k < 1 || k > n) throw std::invalid_argument("top_k: k must be between 1 and the number of logits");
    std::vector<float> maxima(static_cast<size_t>((n + kScanBlock - 1) / kScanBlock));
    if (!row_kernels_for(active_isa()).scan_blocks(logits.data(), n, maxima.data()))
        for (int64_t i = 0; i < n; ++i)
            if (logits.data()[i] != logits.data()[i]) throw std::invalid_argument("top_k: a logit is not a number");
    std::vector<int32_t> ids(static_cast<size_t>(k));
    std::vector<float> values(static_cast<size_t>(k));
    top_k_from_blocks(logits.data(), n, maxima.data(), k, ids.data(), values.data());
    return {to_numpy(std::move(ids)), to_numpy(std::move(values))};
}

// Attention of n queries over t tokens of one KV head, for tests.
OutMatrix attention(const Matrix<float>& q, const Matrix<float>& k, const Matrix<float>& v, const Vector<int64_t>& first,
                    const Vector<int64_t>& last, float softcap, const std::string& k_type, const std::string& v_type,
                    const std::string& isa) {
    const auto n = static_cast<int64_t>(q.shape(0)), hd = static_cast<int64_t>(q.shape(1));
    const auto tokens = static_cast<int64_t>(k.shape(0));
    const KvTypes types{parse_kv_type(k_type), parse_kv_type(v_type)};
    const KvLayout layout({{1, hd}}, types);
    if (n < 1 || static_cast<int64_t>(k.shape(1)) != hd || v.shape(0) != k.shape(0) || v.shape(1) != k.shape(1) ||
        static_cast<int64_t>(first.shape(0)) != n || static_cast<int64_t>(last.shape(0)) != n)
        throw std::invalid_argument("attention: shapes differ");
    std::vector<const float*> queries;
    for (int64_t i = 0; i < n; ++i) {
        if (first.data()[i] < 0 || first.data()[i] > last.data()[i] || last.data()[i] >= tokens)
            throw std::invalid_argument("attention: visible range");
        queries.push_back(q.data() + i * hd);
    }
    const AttentionKernels& kernels = attention_kernels_for(isa_or_active(isa));
    const int64_t chunks = (tokens + kChunk - 1) / kChunk;
    Buffer pages(static_cast<size_t>(chunks) * layout.page_bytes());
    const auto page = [&](int64_t chunk) { return pages.data() + static_cast<size_t>(chunk) * layout.page_bytes(); };
    for (int64_t t = 0; t < tokens; ++t) {
        kernels.store_k(types.k, k.data() + t * hd, hd, layout.k(page(t / kChunk), 0, 0), t % kChunk);
        kernels.store_v(types.v, v.data() + t * hd, hd, layout.v(page(t / kChunk), 0, 0), t % kChunk);
    }
    const QueryBlock block{queries.data(), first.data(), last.data(), n, hd, softcap, types};
    std::vector<float> scratch(static_cast<size_t>(attention_scratch_size(hd)));
    std::vector<float> state(static_cast<size_t>(n * state_size(hd))), later(state.size());
    kernels.reset(state.data(), n, hd);
    for (int64_t group = 0; group * kGroupChunks < chunks; ++group) {
        kernels.reset(later.data(), n, hd);
        for (int64_t c = group * kGroupChunks; c < std::min(chunks, (group + 1) * kGroupChunks); ++c)
            kernels.attend(block, c, {layout.k(page(c), 0, 0), layout.v(page(c), 0, 0)}, later.data(), scratch.data());
        kernels.merge(state.data(), later.data(), n, hd);
    }
    std::vector<float> out(static_cast<size_t>(n * hd));
    std::vector<float*> rows;
    for (int64_t i = 0; i < n; ++i) rows.push_back(out.data() + i * hd);
    kernels.finish(state.data(), n, hd, rows.data());
    return to_matrix(std::move(out), static_cast<size_t>(n), static_cast<size_t>(hd));
}

// One row operation on a vector, for tests: rms_norm, scale, softcap, silu, gelu_tanh (b: what is gated), rope.
OutVector row_op(const std::string& name, const Vector<float>& a, const Vector<float>& b, float parameter,
                 const std::string& isa) {
    const RowKernels& k = row_kernels_for(isa_or_active(isa));
    const auto n = static_cast<int64_t>(a.shape(0)), m = static_cast<int64_t>(b.shape(0));
    std::vector<float> out(a.shape(0));
    const auto require = [](bool ok) {
        if (!ok) throw std::invalid_argument("row_op: sizes");
    };
    if (name == "rms_norm") {
        require(m >= 1 && n % m == 0);
        k.rms_norm(a.data(), b.data(), parameter, out.data(), n, m);
    } else if (name == "scale") {
        k.scale(a.data(), parameter, out.data(), n);
    } else if (name == "softcap") {
        k.softcap(a.data(), parameter, out.data(), n);
    } else if (name == "add") {
        require(n == m);
        k.add(a.data(), b.data(), out.data(), n);
    } else if (name == "rope") {  // b: n / 2 cosines, then as many sines
        require(n % 2 == 0 && n == m);
        k.rope(a.data(), b.data(), b.data() + n / 2, out.data(), n / 2);
    } else {
        require(n == m);
        k.gated(parse_activation(name), a.data(), b.data(), out.data(), n);
    }
    return to_numpy(std::move(out));
}

using RowOpTuple = std::tuple<std::string, int, int, int, int, int64_t, float, std::string>;

void add_row_step(ProgramHandle& self, bool outputs, const std::vector<RowOpTuple>& ops) {
    RowStep step{domain_of(outputs), {}};
    for (const auto& [kind, out, a, b, weight, width, parameter, activation] : ops) {
        RowOp op{parse_kind(kind), out, a, b, weight, width, parameter, {}};
        if (op.kind == RowOp::Kind::gated) op.activation = parse_activation(activation);
        step.ops.push_back(op);
    }
    self.get().add_row_step(std::move(step));
}

void add_linear_step(ProgramHandle& self, bool outputs, int input, const std::vector<std::tuple<int, int, int>>& parts,
                     int gated_out, const std::string& activation) {
    LinearStep step{domain_of(outputs), input, {}, gated_out, {}};
    for (const auto& [matrix, bias, out] : parts) step.parts.push_back({matrix, bias, out});
    if (gated_out >= 0) step.activation = parse_activation(activation);
    self.get().add_linear_step(std::move(step));
}

int add_matrix(ProgramHandle& self, const std::string& type, int64_t n, int64_t k) {
    const WeightTypeInfo* info = find_weight_type(type);
    if (info == nullptr) throw std::invalid_argument("weight type " + type + " has no kernels");
    return self.get().add_matrix(info->type, n, k);
}

void bind_program(nb::module_& m) {
    nb::class_<ProgramHandle>(m, "Program", "Steps of a forward pass over numbered buffers, matrices and vectors.")
        .def(nb::init<>())
        .def("add_buffer", [](ProgramHandle& s, int64_t width, bool outputs) {
                return s.get().add_buffer(width, domain_of(outputs));
            }, "width"_a, "outputs"_a)
        .def("add_matrix", add_matrix, "type"_a, "n"_a, "k"_a)
        .def("add_vector", [](ProgramHandle& s, const Vector<float>& v) { return s.get().add_vector(copied(v)); }, "values"_a)
        .def("add_rope", [](ProgramHandle& s, const Vector<double>& v, float factor) {
                return s.get().add_rope({copied(v), factor});
            }, "inv_freq"_a, "factor"_a)
        .def("add_row_step", add_row_step, "outputs"_a, "ops"_a)
        .def("add_linear_step", add_linear_step, "outputs"_a, "input"_a, "parts"_a, "gated_out"_a = -1,
             "activation"_a = "")
        .def("add_attention_step", [](ProgramHandle& s, int q, int k, int v, int rotated, int out, int layer,
                                      int n_head, int n_head_kv, int head_dim, float scale, float softcap,
                                      int64_t window, int rope, int q_norm, float q_norm_eps, int k_norm,
                                      float k_norm_eps) {
                s.get().add_attention_step({q, k, v, rotated, out, layer, n_head, n_head_kv, head_dim, scale, softcap,
                                            window, rope, q_norm, k_norm, q_norm_eps, k_norm_eps});
            }, nb::kw_only(), "q"_a, "k"_a, "v"_a, "rotated"_a, "out"_a, "layer"_a, "n_head"_a, "n_head_kv"_a,
            "head_dim"_a, "scale"_a, "softcap"_a = 0.0f, "window"_a = 0, "rope"_a = -1, "q_norm"_a = -1,
            "q_norm_eps"_a = 0.0f, "k_norm"_a = -1, "k_norm_eps"_a = 0.0f)
        .def("finish", [](ProgramHandle& s, int result, int64_t n_vocab) { s.get().finish(result, n_vocab); },
             "result"_a, "n_vocab"_a)
        .def("work_bytes", [](ProgramHandle& s, int64_t rows, int64_t outputs) { return s.get().work_bytes(rows, outputs); },
             "rows"_a, "outputs"_a)
        .def_prop_ro("weight_bytes", [](ProgramHandle& s) { return s.get().weight_bytes(); });
}

}  // namespace

void bind_executor(nb::module_& m) {
    nb::exception<ContextFull>(m, "ContextFullError", PyExc_ValueError);
    nb::exception<Cancelled>(m, "CancelledError", PyExc_RuntimeError);
    bind_program(m);
    nb::class_<GuardedExecutor>(m, "Executor", "Replays a program, with its KV cache and packed weights.")
        .def(nb::init<ProgramHandle&, const std::string&, const std::string&, int64_t, int, const std::string&>(),
             "program"_a, nb::kw_only(), "k_type"_a, "v_type"_a, "n_ctx"_a, "threads"_a, "isa"_a = "")
        .def("pack", executor_pack, "matrix"_a, "data"_a.noconvert())
        .def("pack_rows", executor_pack_rows, "matrix"_a, "first_row"_a, "data"_a.noconvert())
        .def("forward", executor_forward, "tokens"_a.noconvert(), "positions"_a.noconvert(), "sequences"_a.noconvert(),
             "parents"_a.noconvert(), "outputs"_a.noconvert(), "logits"_a.noconvert(), "stop"_a = nb::none(),
             "Compute rows; now and then `stop()` is asked, and True ends the pass with CancelledError.")
        .def("argmax", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.argmax(); }); })
        .def("create", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.cache().create(); }); })
        .def("fork", [](GuardedExecutor& s, int32_t sequence, int64_t length) {
                return s.with([&](Executor& e) { return e.cache().fork(sequence, length); });
            }, "sequence"_a, "length"_a)
        .def("release", [](GuardedExecutor& s, int32_t sequence) {
                s.with([&](Executor& e) { e.cache().release(sequence); });
            }, "sequence"_a)
        .def("length", [](GuardedExecutor& s, int32_t sequence) {
                return s.with([&](Executor& e) { return e.cache().length(sequence); });
            }, "sequence"_a)
        .def("truncate", [](GuardedExecutor& s, int32_t sequence, int64_t length) {
                s.with([&](Executor& e) { e.cache().truncate(sequence, length); });
            }, "sequence"_a, "length"_a)
        .def("commit", [](GuardedExecutor& s, int32_t sequence, const std::vector<int64_t>& rows) {
                s.with([&](Executor& e) { e.cache().commit(sequence, rows); });
            }, "sequence"_a, "rows"_a)
        .def_prop_ro("kv_bytes", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.cache().bytes_in_use(); }); })
        .def_prop_ro("kv_page_bytes", [](GuardedExecutor& s) {
                return s.with([](Executor& e) { return e.cache().layout().page_bytes(); });
            })
        .def("take_profile", [](GuardedExecutor& s) {
                const auto seconds = s.with([](Executor& e) { return e.take_profile(); });
                nb::dict result;
                for (size_t i = 0; i < kNumWorkKinds; ++i) result[kWorkKindNames[i]] = seconds[i];
                return result;
            })
        .def_prop_ro("work_bytes", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.work_bytes(); }); })
        .def_prop_ro("weight_bytes", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.program().weight_bytes(); }); })
        .def_prop_ro("threads", [](GuardedExecutor& s) { return s.with([](Executor& e) { return e.threads(); }); })
        .def_prop_ro("isa", [](GuardedExecutor& s) { return s.with([](Executor& e) { return std::string(isa_name(e.isa())); }); });
    m.def("request_cancel", [] { ThreadPool::request_cancel(); },
          "Stop the native computation in progress, if any; its caller gets CancelledError.");
    m.def("kv_page_bytes", [](const std::vector<std::pair<int64_t, int64_t>>& layers, const std::string& k_type,
                              const std::string& v_type) {
              std::vector<KvLayer> specs;
              for (const auto& [heads, head_dim] : layers) specs.push_back({heads, padded_head_dim(head_dim)});
              return KvLayout(std::move(specs), {parse_kv_type(k_type), parse_kv_type(v_type)}).page_bytes();
          }, "layers"_a, "k_type"_a, "v_type"_a, "Bytes of one page (64 tokens) for layers of (n_head_kv, head_dim).");
    m.def("top_k", top_k, "logits"_a, "k"_a, "Ids and values of the k largest of a row, largest first, ties by lowest id.");
    m.def("attention", attention, "q"_a, "k"_a, "v"_a, "first"_a, "last"_a, nb::kw_only(), "softcap"_a = 0.0f,
          "k_type"_a = "f16", "v_type"_a = "f16", "isa"_a = "");
    m.def("row_op", row_op, "name"_a, "a"_a, "b"_a, "parameter"_a = 0.0f, "isa"_a = "");
    m.def("padded_head_dim", padded_head_dim, "head_dim"_a, "Elements that a head takes in the KV cache.");
    m.attr("PAGE_TOKENS") = kChunk;
    m.attr("MAX_BATCH_ROWS") = kMaxBatchRows;
}

}  // namespace specdec
