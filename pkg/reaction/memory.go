package reaction

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memory stores values that many objects share, but stores each value only once: names of nodes and namespaces,
// messages, and the managed fields of nodes. The zero value is empty. It is safe for concurrent use.
type memory struct {
	mu     sync.Mutex
	texts  map[string]string
	fields map[string]*metav1.FieldsV1
}

// mostShared is the maximum number of shared values of a kind.
const mostShared = 20000

func (m *memory) text(text string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, is := m.texts[text]; is {
		return known
	}
	if m.texts == nil || len(m.texts) >= mostShared {
		m.texts = map[string]string{}
	}
	m.texts[text] = text
	return text
}

func (m *memory) fieldsV1(fields *metav1.FieldsV1) *metav1.FieldsV1 {
	if fields == nil {
		return nil
	}
	text := fields.GetRawString()
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.fields[text]; known != nil {
		return known
	}
	if m.fields == nil || len(m.fields) >= mostShared {
		m.fields = map[string]*metav1.FieldsV1{}
	}
	m.fields[text] = fields
	return fields
}
