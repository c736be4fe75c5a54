#include "kv_cache.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace specdec {

namespace {

constexpr size_t kSlabBytes = size_t{16} << 20;

size_t element_bytes(KvType type) { return type == KvType::f32 ? 4 : type == KvType::f16 ? 2 : 1; }

int64_t pages_for(int64_t tokens) { return (tokens + kChunk - 1) / kChunk; }

// Copies `count` elements that lie `stride` elements apart, first element at `slot` (in elements).
void copy_strided(size_t bytes, int64_t count, int64_t stride, const uint8_t* from, int64_t from_slot, uint8_t* to,
                  int64_t to_slot) {
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(to + static_cast<size_t>(i * stride + to_slot) * bytes,
                    from + static_cast<size_t>(i * stride + from_slot) * bytes, bytes);
}

}  // namespace

void copy_k(KvType type, int64_t hd, const uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot) {
    copy_strided(element_bytes(type), hd, kChunk, from, from_slot, to, to_slot);
    if (type == KvType::q8_0)
        copy_strided(2, hd / 32, kChunk, from + hd * kChunk, from_slot, to + hd * kChunk, to_slot);
}

void copy_v(KvType type, int64_t hd, const uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot) {
    const size_t bytes = element_bytes(type) * static_cast<size_t>(hd);
    std::memcpy(to + static_cast<size_t>(to_slot) * bytes, from + static_cast<size_t>(from_slot) * bytes, bytes);
    if (type == KvType::q8_0)
        std::memcpy(to + hd * kChunk + to_slot * (hd / 32) * 2, from + hd * kChunk + from_slot * (hd / 32) * 2,
                    static_cast<size_t>(hd / 32) * 2);
}

KvLayout::KvLayout(std::vector<KvLayer> layers, KvTypes types) : layers_(std::move(layers)), types_(types) {
    for (const KvLayer& layer : layers_) {
        if (layer.n_head_kv < 1 || layer.head_dim < 1 || layer.head_dim > kMaxHeadDim ||
            layer.head_dim != padded_head_dim(layer.head_dim))
            throw std::invalid_argument("head dimension " + std::to_string(layer.head_dim) + " is not supported (1 to " +
                                        std::to_string(kMaxHeadDim) + ")");
        offsets_.push_back(page_bytes_);
        k_bytes_.push_back((kv_chunk_bytes(types.k, layer.head_dim) + 63) / 64 * 64);
        v_bytes_.push_back((kv_chunk_bytes(types.v, layer.head_dim) + 63) / 64 * 64);
        page_bytes_ += static_cast<size_t>(layer.n_head_kv) * (k_bytes_.back() + v_bytes_.back());
    }
    page_bytes_ = (page_bytes_ + 4095) / 4096 * 4096;
}

void KvLayout::copy_token(uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot) const {
    for (size_t l = 0; l < layers_.size(); ++l) {
        const auto layer = static_cast<int64_t>(l);
        for (int64_t h = 0; h < layers_[l].n_head_kv; ++h) {
            copy_k(types_.k, layers_[l].head_dim, k(from, layer, h), from_slot, k(to, layer, h), to_slot);
            copy_v(types_.v, layers_[l].head_dim, v(from, layer, h), from_slot, v(to, layer, h), to_slot);
        }
    }
}

PagePool::PagePool(size_t page_bytes) : page_bytes_(page_bytes) {}

void PagePool::grow() {
    const size_t count = std::max<size_t>(1, kSlabBytes / std::max<size_t>(page_bytes_, 1));
    slabs_.emplace_back(count * page_bytes_);
    free_.reserve(slabs_.size() * count);
    for (size_t i = count; i-- > 0;) free_.push_back(slabs_.back().data() + i * page_bytes_);
}

std::shared_ptr<uint8_t> PagePool::take() {
    if (free_.empty()) grow();
    uint8_t* page = free_.back();
    free_.pop_back();
    ++in_use_;
    return std::shared_ptr<uint8_t>(page, [this](uint8_t* p) {
        free_.push_back(p);  // within the capacity that grow() reserved
        --in_use_;
    });
}

KvCache::KvCache(std::vector<KvLayer> layers, KvTypes types, int64_t n_ctx)
    : layout_(std::move(layers), types), n_ctx_(n_ctx), pool_(layout_.page_bytes()) {
    if (n_ctx < 1) throw std::invalid_argument("n_ctx must be at least 1");
}

const KvCache::Sequence& KvCache::find(int32_t sequence) const {
    const auto it = sequences_.find(sequence);
    if (it == sequences_.end()) throw std::invalid_argument("unknown sequence " + std::to_string(sequence));
    return it->second;
}

int32_t KvCache::create() {
    sequences_.emplace(next_handle_, Sequence{});
    return next_handle_++;
}

int32_t KvCache::fork(int32_t sequence, int64_t length) {
    const Sequence& source = find(sequence);
    if (length < 0 || length > source.length)
        throw std::invalid_argument("cannot fork at " + std::to_string(length) + ": sequence has " +
                                    std::to_string(source.length) + " tokens");
    Sequence copy;
    copy.length = length;
    copy.pages.assign(source.pages.begin(), source.pages.begin() + pages_for(length));
    sequences_.emplace(next_handle_, std::move(copy));
    return next_handle_++;
}

void KvCache::release(int32_t sequence) {
    find(sequence);
    sequences_.erase(sequence);
}

int64_t KvCache::length(int32_t sequence) const { return find(sequence).length; }

void KvCache::trim(Sequence& sequence) { sequence.pages.resize(static_cast<size_t>(pages_for(sequence.length))); }

void KvCache::truncate(int32_t sequence, int64_t length) {
    Sequence& s = find(sequence);
    if (length < 0 || length > s.length)
        throw std::invalid_argument("cannot truncate to " + std::to_string(length) + ": sequence has " +
                                    std::to_string(s.length) + " tokens");
    s.pending = {};
    s.length = length;
    trim(s);
}

// Makes positions [first, end) writable: pages that are missing are added, shared ones are copied.
void KvCache::own(Sequence& s, int64_t first, int64_t end) {
    if (first >= end) return;
    for (int64_t chunk = first / kChunk; chunk < pages_for(end); ++chunk) {
        const auto index = static_cast<size_t>(chunk);
        if (index == s.pages.size()) {
            s.pages.push_back(pool_.take());
        } else if (s.pages[index].use_count() > 1) {
            Page copy = pool_.take();
            std::memcpy(copy.get(), s.pages[index].get(), layout_.page_bytes());
            s.pages[index] = std::move(copy);
        }
    }
}

void KvCache::begin(int32_t sequence, std::vector<int64_t> ids, std::vector<int64_t> parents) {
    Sequence& s = find(sequence);
    s.pending = {};
    trim(s);
    Pending next;
    const auto n = static_cast<int64_t>(ids.size());
    next.positions.resize(ids.size());
    for (int64_t i = 0; i < n; ++i) {
        next.positions[i] = parents[i] < 0 ? s.length : next.positions[parents[i]] + 1;
        next.tree = next.tree || parents[i] != i - 1;
        if (next.positions[i] >= n_ctx_)
            throw ContextFull("the context is full: " + std::to_string(next.positions[i] + 1) +
                              " tokens do not fit into " + std::to_string(n_ctx_) + " (--ctx-size)");
    }
    next.ids = std::move(ids);
    next.parents = std::move(parents);
    if (next.tree) {
        for (int64_t i = 0; i < pages_for(n); ++i) next.side.push_back(pool_.take());
    } else {
        own(s, s.length, s.length + n);
    }
    s.pending = std::move(next);
}

KvCache::Slot KvCache::pending_slot(int32_t sequence, int64_t index) const {
    const Sequence& s = find(sequence);
    if (s.pending.tree) return {s.pending.side[index / kChunk].get(), index % kChunk};
    const int64_t position = s.pending.positions[index];
    return {s.pages[position / kChunk].get(), position % kChunk};
}

void KvCache::commit(int32_t sequence, const std::vector<int64_t>& ids) {
    Sequence& s = find(sequence);
    Pending& pending = s.pending;
    if (pending.ids.empty() && !ids.empty())
        throw std::invalid_argument("sequence " + std::to_string(sequence) + " has no pending rows");
    std::vector<int64_t> path;
    int64_t last = pending.committed;
    for (int64_t id : ids) {
        const auto it = std::find(pending.ids.begin() + (last + 1), pending.ids.end(), id);
        if (it == pending.ids.end())
            throw std::invalid_argument("row " + std::to_string(id) + " is not a pending row of sequence " +
                                        std::to_string(sequence) + " that can follow");
        const int64_t index = it - pending.ids.begin();
        if (pending.parents[index] != last)
            throw std::invalid_argument("row " + std::to_string(id) + " does not follow on the path");
        path.push_back(last = index);
    }
    const auto n = static_cast<int64_t>(path.size());
    if (pending.tree) {
        own(s, s.length, s.length + n);
        for (int64_t i = 0; i < n; ++i) {
            const Slot from = pending_slot(sequence, path[i]);
            const int64_t position = s.length + i;
            layout_.copy_token(from.page, from.slot, s.pages[position / kChunk].get(), position % kChunk);
        }
    }
    s.length += n;
    pending.committed = last;
}

void KvCache::drop_pending(int32_t sequence) {
    Sequence& s = find(sequence);
    s.pending = {};
    trim(s);
}

}  // namespace specdec
