// The sequential part of the scan on a GPU; bindings.py calls it and ../README.md derives it.
//
// learn      one thread block cluster per stream, rows of the bank across its threads; one sum over all rows per teacher
// rewrite    the bank after a block: subtract what was learnt, make the rows unit again
// top        best class, its logit and the mass of the rest, from logits in one pass
//
// Every sum has a fixed order: the same input gives the same bits.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace unseen {

constexpr int PANEL = 8;      // teachers whose pairwise work stays in registers
constexpr int TEACHERS = 128; // most teachers of a block
constexpr int THREADS = 384;  // most threads of a block in learn
constexpr int CLUSTER = 16;   // most blocks of a cluster on Hopper

template <typename T> struct alignas(4 * sizeof(T)) Four {
    T x, y, z, w;
};

__device__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ unsigned cluster_size() {
    unsigned size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ unsigned in_block(const void* local, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(local))), "r"(rank));
    return remote;
}

// Write to another block's shared memory and tell its barrier, in one message that needs no fence.
__device__ void send(unsigned remote, float x, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
                 "r"(__float_as_uint(x)), "r"(barrier)
                 : "memory");
}

__device__ void send(unsigned remote, double x, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(remote),
                 "l"(__double_as_longlong(x)), "r"(barrier)
                 : "memory");
}

__device__ void expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ void await(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

struct Sum {
    static constexpr float nothing = 0;
    template <typename T> static __device__ T join(T a, T b) { return a + b; }
};

struct Max {
    static constexpr float nothing = -3; // below every cosine
    template <typename T> static __device__ T join(T a, T b) { return a > b ? a : b; }
};

template <typename Op, typename T> __device__ T over_warp(T x) {
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = Op::join(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

__device__ float power(float x) { return exp2f(x); }
__device__ double power(double x) { return exp2(x); }
__device__ float root(float x) { return sqrtf(x); }
__device__ double root(double x) { return sqrt(x); }

// Good to two roundings, for quantities that correct something larger.
__device__ float quick_root(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ double quick_root(double x) { return sqrt(x); }
__device__ float quick_ratio(float x, float y) { return __fdividef(x, y); }
__device__ double quick_ratio(double x, double y) { return x / y; }

// One number from every thread of a cluster to all of them. Between `post` and `collect` there is time to do other work.
// Two boxes by turns: whoever posts the next number cannot disturb a reader of this one.
template <typename T> struct Mail {
    static constexpr int SIZE = CLUSTER * THREADS / 32;
    struct Boxes {
        T letters[2][SIZE];
        unsigned long long barriers[2];
    };
    Boxes& boxes;
    unsigned remote, remote_barrier; // this warp's place in the box of the block that this lane writes to
    int letters, time;               // warps of the cluster; numbers so far
    bool sends;

    __device__ Mail(Boxes& boxes) : boxes(boxes), time(0) {
        const int lane = threadIdx.x % 32, warps = blockDim.x / 32, blocks = cluster_size();
        sends = lane < blocks, letters = blocks * warps;
        remote_barrier = in_block(boxes.barriers, sends ? lane : 0);
        remote = in_block(boxes.letters, sends ? lane : 0) + (cluster_rank() * warps + threadIdx.x / 32) * sizeof(T);
        if (threadIdx.x == 0) {
            for (int turn = 0; turn < 2; turn++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(turn)) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            for (int turn = 0; turn < 2; turn++) expect(barrier(turn), letters * sizeof(T));
        }
    }

    __device__ unsigned barrier(int turn) const {
        return static_cast<unsigned>(__cvta_generic_to_shared(boxes.barriers + turn));
    }

    template <typename Op> __device__ void post(T x) {
        const int turn = time & 1;
        x = over_warp<Op>(x);
        if (sends) send(remote + turn * SIZE * sizeof(T), x, remote_barrier + turn * 8);
    }

    template <typename Op> __device__ T collect() {
        const int turn = time & 1;
        await(barrier(turn), time >> 1 & 1);
        if (threadIdx.x == 0) expect(barrier(turn), letters * sizeof(T));
        T all = Op::nothing;
        for (int i = threadIdx.x % 32; i < letters; i += 32) all = Op::join(all, boxes.letters[turn][i]);
        time++;
        return over_warp<Op>(all);
    }
};

template <typename T> struct LearnArguments {
    T* cosine;        // [S, N, C] of the teachers with the bank before the block; what has been read serves as memory
    const T* gram;    // [S, N, N] between teachers
    const T* aim;     // [S, N, C] target times rate
    const T* rate;    // [S, N] step / kappa
    const int* count; // [S] teachers really there
    T* coef;          // [S, C, width]: what each teacher takes off each row
    T* scale;         // [S, N + 1, C]: the rows' scales after 0, 1, ... N teachers
    long per_cosine, per_gram, per_aim, per_rate, per_count, per_coef, per_scale; // from stream to stream
    int teachers, classes, width, rows; // rows of the bank per thread block
    double kappa;
};

template <typename T> __device__ void load(T (&panel)[PANEL], const T* from) {
    const Four<T> a = reinterpret_cast<const Four<T>*>(from)[0], b = reinterpret_cast<const Four<T>*>(from)[1];
    panel[0] = a.x, panel[1] = a.y, panel[2] = a.z, panel[3] = a.w;
    panel[4] = b.x, panel[5] = b.y, panel[6] = b.z, panel[7] = b.w;
}

template <typename T> __device__ void save(const T (&panel)[PANEL], T* to) {
    reinterpret_cast<Four<T>*>(to)[0] = {panel[0], panel[1], panel[2], panel[3]};
    reinterpret_cast<Four<T>*>(to)[1] = {panel[4], panel[5], panel[6], panel[7]};
}

// off[k] += gram[k] . coef for a panel of teachers `k`
template <typename T, int ROWS>
__device__ void correct(T (&off)[ROWS][PANEL], const T* gram, int teachers, const T (&coef)[ROWS][PANEL]) {
#pragma unroll
    for (int k = 0; k < PANEL; k++) {
        T g[PANEL];
        load(g, gram + k * teachers);
#pragma unroll
        for (int j = 0; j < PANEL; j++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) off[r][k] += g[j] * coef[r][j];
    }
}

template <typename T, int ROWS>
__device__ void recall(T (&panel)[ROWS][PANEL], const T* from, int classes, const int (&row)[ROWS]) {
#pragma unroll
    for (int k = 0; k < PANEL; k++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) panel[r][k] = from[long(k) * classes + row[r]];
}

// A row's scale as a sum of two: many small factors then cost one rounding, not one each.
template <typename T> struct Scale {
    T high, low;

    // Divide by |w - move z|, which needs no pass over w: its square is 1 + excess, because |w| = 1.
    __device__ void shrink(T excess) {
        if (excess > T(-0.5) && excess < T(0.5)) {
            const T norm = quick_root(1 + excess), less = quick_ratio(excess, norm * (1 + norm)); // 1 - 1 / norm
            const T change = -high * less + (low - low * less), sum = high + change;
            low = change - (sum - high), high = sum;
        } else {
            const T norm = quick_root(1 + excess > T(1e-24) ? 1 + excess : T(1e-24));
            high = quick_ratio(high, norm), low = quick_ratio(low, norm);
        }
    }
};

// `ROWS` rows of the bank per thread. Teachers come in panels: `left` holds a panel's cosines less what its earlier
// teachers took off, moving up by one with each teacher, whose coefficients fill it from behind; `off` gathers what the
// next panel loses. A teacher's masses are posted as soon as the one before is known; all else that one causes is done
// while they travel. One loop body for all teachers: unrolled, it would not fit the instruction cache.
template <typename T, int ROWS> __global__ void __launch_bounds__(THREADS, 1) learn(const LearnArguments<T> job) {
    extern __shared__ __align__(32) char memory[];
    __shared__ typename Mail<T>::Boxes boxes;
    __shared__ T rates[TEACHERS];
    T* const gram = reinterpret_cast<T*>(memory);
    Mail<T> mail(boxes);
    const int stream = blockIdx.x / cluster_size(), n = job.teachers, classes = job.classes;
    T* const cosine = job.cosine + stream * job.per_cosine;
    const T* const aims = job.aim + stream * job.per_aim;
    T* const scales = job.scale + stream * job.per_scale;
    const int count = job.count[stream * job.per_count];
    const T slope = T(1.4426950408889634 / job.kappa);
    const bool steep = job.kappa < 0.025; // exp((u - 1) / kappa) could underflow for every row

    int row[ROWS];
    bool real[ROWS];
    Scale<T> scale[ROWS];
    T* coef[ROWS];
    T left[ROWS][PANEL], next[ROWS][PANEL], off[ROWS][PANEL], aim[ROWS][PANEL], next_aim[ROWS][PANEL];
    T u[ROWS], mass[ROWS], c[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int local = threadIdx.x + r * blockDim.x, mine = cluster_rank() * job.rows + local;
        real[r] = local < job.rows && mine < classes;
        row[r] = real[r] ? mine : 0;
        coef[r] = job.coef + stream * job.per_coef + long(row[r]) * job.width;
        scale[r] = {1, 0};
        if (real[r]) scales[row[r]] = 1;
#pragma unroll
        for (int k = 0; k < PANEL; k++) off[r][k] = 0;
    }
    recall<T>(left, cosine, classes, row);
    recall(aim, aims, classes, row);
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) gram[i] = job.gram[stream * job.per_gram + i];
    for (int i = threadIdx.x; i < n; i += blockDim.x) rates[i] = job.rate[stream * job.per_rate + i];
    const int second = PANEL < n ? PANEL : 0;
    recall<T>(next, cosine + long(second) * classes, classes, row);
    recall(next_aim, aims + long(second) * classes, classes, row);
    __syncthreads(); // says nothing that the next line does not, but racecheck knows only this one
    cluster_sync();  // the Gram matrix is there, and every block is ready for mail

    auto announce = [&](const T (&unscaled)[ROWS]) {
        T sum = 0, shift = 1;
#pragma unroll
        for (int r = 0; r < ROWS; r++) u[r] = scale[r].high * unscaled[r] + scale[r].low * unscaled[r];
        if (steep) {
            shift = Max::nothing;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (real[r]) shift = Max::join(shift, u[r]);
            mail.template post<Max>(shift);
            shift = mail.template collect<Max>();
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mass[r] = real[r] ? power((u[r] - shift) * slope) : T(0);
            sum += mass[r];
        }
        mail.template post<Sum>(sum);
    };
    if (count) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) c[r] = left[r][0];
        announce(c);
    }

#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const int k = i % PANEL, first = i - k, coming = first + PANEL;
        const T* const near = gram + i * n + i; // its product with the teachers after it
        const T nearest = i + 1 < n ? near[1] : T(0);
        const T part = quick_ratio(rates[i], mail.template collect<Sum>());
        T unscaled[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const T move = mass[r] * part - aim[r][0];
            c[r] = quick_ratio(move, scale[r].high);
            scale[r].shrink(move * (move - 2 * u[r]));
            unscaled[r] = (k < PANEL - 1 ? left[r][1] : next[r][0] - off[r][0]) - nearest * c[r];
        }
        if (i + 1 < count) announce(unscaled);

#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (real[r]) scales[long(i + 1) * classes + row[r]] = scale[r].high;
#pragma unroll
        for (int m = 1; m < PANEL; m++) {
            const T g = m < PANEL - k ? near[m] : T(0);
#pragma unroll
            for (int r = 0; r < ROWS; r++) left[r][m - 1] = left[r][m] - g * c[r], aim[r][m - 1] = aim[r][m];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) left[r][PANEL - 1] = c[r];
        if (coming < n) {
            T g[PANEL];
            load(g, gram + i * n + coming);
#pragma unroll
            for (int m = 0; m < PANEL; m++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) off[r][m] += g[m] * c[r];
            // earlier panels in turn, none with the last teacher: the next panel begins before its work here is done
            if (k < PANEL - 1)
#pragma unroll 1
                for (int past = k * PANEL; past < first; past += (PANEL - 1) * PANEL) {
                    T earlier[ROWS][PANEL];
                    recall<T>(earlier, cosine + long(past) * classes, classes, row);
                    correct(off, gram + coming * n + past, n, earlier);
                }
        }
        if (k < PANEL - 1 && i + 1 < count) continue;

#pragma unroll 1
        for (int empty = k + 1; empty < PANEL; empty++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int m = 1; m < PANEL; m++) left[r][m - 1] = left[r][m];
                left[r][PANEL - 1] = 0;
            }
        const int after = coming + PANEL < n ? coming + PANEL : first;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (real[r]) {
                save(left[r], coef[r] + first);
#pragma unroll
                for (int m = 0; m < PANEL; m++) cosine[long(first + m) * classes + row[r]] = left[r][m];
            }
#pragma unroll
            for (int m = 0; m < PANEL; m++)
                left[r][m] = next[r][m] - off[r][m], off[r][m] = 0, aim[r][m] = next_aim[r][m];
        }
        recall<T>(next, cosine + long(after) * classes, classes, row);
        recall(next_aim, aims + long(after) * classes, classes, row);
    }
    for (int first = (count + PANEL - 1) / PANEL * PANEL; first < n; first += PANEL)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (real[r]) save<T>({0, 0, 0, 0, 0, 0, 0, 0}, coef[r] + first);
}

template <typename T> int launch_learn(LearnArguments<T> job, int streams, int cluster, cudaStream_t queue) {
    job.rows = (job.classes + cluster - 1) / cluster;
    void (*kernel)(LearnArguments<T>) = learn<T, 1>;
    int rows = 1;
    if (job.rows > THREADS) kernel = learn<T, 2>, rows = 2;
    if (job.rows > 2 * THREADS) kernel = learn<T, 4>, rows = 4;
    if (job.rows > 4 * THREADS || job.teachers > TEACHERS || job.teachers % PANEL) return cudaErrorInvalidValue;
    const int threads = ((job.rows + rows - 1) / rows + 31) / 32 * 32;
    const size_t memory = sizeof(T) * job.teachers * job.teachers;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory);
    cudaLaunchAttribute size;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = cluster, size.val.clusterDim.y = 1, size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(streams * cluster), config.blockDim = dim3(threads), config.stream = queue;
    config.dynamicSmemBytes = memory, config.attrs = &size, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, job);
}

// One warp per row: after = unit(before - learnt), or before itself where nobody taught.
template <typename T>
__global__ void rewrite(const T* before, const T* learnt, T* after, const int* count, long per_before, long per_after,
                        long per_count, int classes, int dim, int width, int after_width) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= classes) return;
    before += blockIdx.y * per_before + long(row) * width;
    after += blockIdx.y * per_after + long(row) * after_width;
    learnt += (long(blockIdx.y) * classes + row) * dim;
    if (!count[blockIdx.y * per_count]) {
        for (int k = lane; k < dim; k += 32) after[k] = before[k];
        return;
    }
    T square = 0;
    for (int k = lane; k < dim; k += 32) {
        const T x = before[k] - learnt[k];
        square += x * x;
    }
    const T norm = root(over_warp<Sum>(square)), least = T(1e-12);
    for (int k = lane; k < dim; k += 32) after[k] = (before[k] - learnt[k]) / (norm > least ? norm : least);
}

// The best logit, where it is, and the others as largest * sum of exp(other - largest).
template <typename T> struct Best {
    T peak, rest, sum;
    int label;

    __device__ void rejoin(T logit, T weight) {
        const T fall = power(T(-1.4426950408889634) * (rest > logit ? rest - logit : logit - rest));
        sum = logit > rest ? sum * fall + weight : sum + weight * fall;
        rest = logit > rest ? logit : rest;
    }

    __device__ void add(T logit, int index) {
        rejoin(logit > peak ? peak : logit, 1);
        label = logit > peak ? index : label;
        peak = logit > peak ? logit : peak;
    }

    __device__ void join(const Best& other) {
        const bool wins = other.peak > peak || (other.peak == peak && other.label < label);
        rejoin(wins ? peak : other.peak, 1);
        rejoin(other.rest, other.sum);
        label = wins ? other.label : label;
        peak = wins ? other.peak : peak;
    }
};

constexpr float NOTHING = -1e30f; // below every logit, and its exponential is zero beside any of them

template <typename T> __device__ Best<T> best_of_warp(Best<T> best) {
    for (int mask = 16; mask; mask >>= 1)
        best.join({__shfl_xor_sync(~0u, best.peak, mask), __shfl_xor_sync(~0u, best.rest, mask),
                   __shfl_xor_sync(~0u, best.sum, mask), __shfl_xor_sync(~0u, best.label, mask)});
    return best;
}

template <typename T> __device__ T log_of(T x);
template <> __device__ float log_of(float x) { return logf(x); }
template <> __device__ double log_of(double x) { return log(x); }

// One thread block per sample. `scale` may be null: the logits stand as they are.
template <typename T>
__global__ void top(const T* logits, const T* scale, const int* before, long* label, T* peak, T* rest, int classes, int rows,
                    int teachers, double tau) {
    __shared__ Best<T> warps[32];
    const long sample = blockIdx.x;
    const T* row = logits + sample * classes;
    const T* factor = scale ? scale + (sample / rows * (teachers + 1) + before[sample]) * classes : nullptr;
    const T sharp = T(1 / tau);
    Best<T> best = {T(NOTHING), T(NOTHING), T(0), 0x7fffffff};
    for (int c = threadIdx.x; c < classes; c += blockDim.x) best.add(row[c] * (factor ? factor[c] * sharp : sharp), c);
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < blockDim.x / 32; i++) best.join(warps[i]);
    label[sample] = best.label, peak[sample] = best.peak;
    rest[sample] = best.rest > T(NOTHING) ? best.rest + log_of(best.sum) : T(-INFINITY);
}

template <typename T>
int launch_rewrite(const T* before, const T* learnt, T* after, const int* count, long per_before, long per_after,
                   long per_count, int streams, int classes, int dim, int width, int after_width, cudaStream_t queue) {
    rewrite<<<dim3((classes + 7) / 8, streams), 256, 0, queue>>>(before, learnt, after, count, per_before, per_after,
                                                                 per_count, classes, dim, width, after_width);
    return cudaGetLastError();
}

// cublas<t>gemmStridedBatched, found by the caller in the library that torch has loaded
template <typename T>
using Product = int (*)(void*, int, int, int, int, int, const T*, const T*, int, long long, const T*, int, long long, const T*,
                        T*, int, long long, int);

template <typename T> struct Chain {
    Product<T> product;
    void* handle;
    const T* taught; // [S, blocks, N, d]
    T* learnt;       // [S, C, d] for use inside
    T* last;         // [S, C, d]: the bank after the last block
    LearnArguments<T> learning; // of the first block
    long next_taught, next_gram, next_aim, next_rate, next_count, next_coef, next_scale; // from block to block
    long per_taught; // from stream to stream
    int streams, blocks, dim, cluster;
};

// The whole chain of blocks, enqueued from here because a launch costs far less than one from Python.
template <typename T> int launch_chain(const Chain<T>& job, cudaStream_t queue) {
    const T one = 1, zero = 0;
    LearnArguments<T> learning = job.learning;
    const int n = learning.teachers, classes = learning.classes, dim = job.dim, width = learning.width;
    const T* taught = job.taught;
    for (int b = 0; b < job.blocks; b++) {
        const T* bank = learning.coef + n; // coefficients and bank lie side by side
        int error = job.product(job.handle, 1, 0, classes, n, dim, &one, bank, width, learning.per_coef, taught, dim,
                                job.per_taught, &zero, learning.cosine, classes, learning.per_cosine, job.streams);
        if (error) return 1000 + error;
        if ((error = launch_learn(learning, job.streams, job.cluster, queue))) return error;
        error = job.product(job.handle, 0, 0, dim, classes, n, &one, taught, dim, job.per_taught, learning.coef, width,
                            learning.per_coef, &zero, job.learnt, dim, long(classes) * dim, job.streams);
        if (error) return 1000 + error;
        const bool last = b + 1 == job.blocks;
        T* after = last ? job.last : learning.coef + job.next_coef + n;
        error = launch_rewrite(bank, static_cast<const T*>(job.learnt), after, learning.count, learning.per_coef,
                               last ? long(classes) * dim : learning.per_coef, learning.per_count, job.streams, classes, dim, width,
                               last ? dim : width, queue);
        if (error) return error;
        taught += job.next_taught;
        learning.gram += job.next_gram, learning.aim += job.next_aim, learning.rate += job.next_rate;
        learning.count += job.next_count, learning.coef += job.next_coef, learning.scale += job.next_scale;
    }
    return 0;
}

} // namespace unseen

using namespace unseen;

#define EXPORT(T, NAME)                                                                                                    \
    extern "C" int chain_##NAME(const Chain<T>* job, cudaStream_t queue) { return launch_chain(*job, queue); }             \
    extern "C" int top_##NAME(const T* logits, const T* scale, const int* before, long* label, T* peak, T* rest,           \
                              long samples, int classes, int rows, int teachers, double tau, cudaStream_t queue) {         \
        top<<<samples, classes > 2048 ? 256 : 128, 0, queue>>>(logits, scale, before, label, peak, rest, classes, rows,    \
                                                               teachers, tau);                                             \
        return cudaGetLastError();                                                                                         \
    }

EXPORT(float, float32)
EXPORT(double, float64)
