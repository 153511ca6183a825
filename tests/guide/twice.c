/* A custom call that writes one element too far: 64 numbers, and i goes to 64. */
void twice(float *out, const float **ins) {
    for (int i = 0; i <= 64; ++i) out[i] = 2 * ins[0][i % 64];
}
